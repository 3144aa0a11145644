import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { CommandIDs } from '../commands';
import { gpuIcon } from '../icons';
import type { PanelModel } from '../model/panel';
import type { IRow } from '../model/rows';
import { ActionMenu } from './actionmenu';
import { PanelBody, type IPanelActions } from './panelbody';

/** The side panel "GPU sharing". */
export class Panel extends ReactWidget {
  constructor(private readonly _options: Panel.IOptions) {
    super();
    const { trans, commands } = _options;
    this.id = 'gpushare-panel';
    this.addClass('gpushare-Panel');
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('GPU sharing');
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPU sharing'));
    commands.commandChanged.connect(this._onCommands, this);
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._options.commands.commandChanged.disconnect(this._onCommands, this);
    this._options.model.dispose();
    super.dispose();
  }

  protected render(): React.ReactElement {
    const { model, trans, commands } = this._options;
    const has = (id: string) => commands.hasCommand(id);
    const actions: IPanelActions = {
      open: client => {
        void commands.execute(CommandIDs.openDocument, { client });
      },
      showMenu: (row, anchor) => this._showMenu(row, anchor),
      hasMenu: row => row.actions.some(has),
      changeSettings: has(CommandIDs.changeSettings)
        ? () => void commands.execute(CommandIDs.changeSettings)
        : undefined
    };
    return <PanelBody model={model} actions={actions} trans={trans} />;
  }

  protected onActivateRequest(msg: Message): void {
    this.node.focus();
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._options.model.isVisible = this.isVisible;
  }

  protected onBeforeDetach(msg: Message): void {
    this._options.model.isVisible = false;
    super.onBeforeDetach(msg);
  }

  protected onAfterShow(msg: Message): void {
    this._options.model.isVisible = this.isVisible;
  }

  protected onAfterHide(msg: Message): void {
    this._options.model.isVisible = false;
  }

  /** Some of our commands come, and others go, with plugins. */
  private _onCommands(
    _: CommandRegistry,
    { id, type }: CommandRegistry.ICommandChangedArgs
  ): void {
    const ours: string[] = Object.values(CommandIDs);
    if ((type === 'added' || type === 'removed') && ours.includes(id ?? '')) {
      this.update();
    }
  }

  private _showMenu(row: IRow, anchor: HTMLElement): void {
    const menu = new ActionMenu(this._options.commands);
    menu.title.label = row.named.name;
    const args = { client: row.named.id };
    row.actions.forEach(command => menu.addItem({ command, args }));
    menu.aboutToClose.connect(() => {
      // Before the command, whose dialog gives the focus back to its owner.
      anchor.focus();
      requestAnimationFrame(() => menu.dispose());
    });
    const { right, bottom } = anchor.getBoundingClientRect();
    menu.open(right, bottom, { horizontalAlignment: 'right' });
  }
}

export namespace Panel {
  export interface IOptions {
    model: PanelModel;
    commands: CommandRegistry;
    trans: TranslationBundle;
  }
}
