/** Side panel "GPU sharing". */

import { ReactWidget } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { CommandIDs } from '../base/commands';
import { gpuIcon } from '../base/icons';
import { trans } from '../base/trans';
import { PanelContent } from './panelContent';
import type { PanelModel } from './panelModel';

/** Side panel "GPU sharing". */
export class Panel extends ReactWidget {
  constructor(
    private readonly _model: PanelModel,
    private readonly _commands: CommandRegistry
  ) {
    super();
    this.id = 'gpushare-panel';
    this.addClass('gpushare-Panel');
    this.title.icon = gpuIcon;
    this.title.caption = trans.__('GPU sharing');
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('GPU sharing'));
    _commands.commandChanged.connect(this._onCommands, this);
  }

  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._commands.commandChanged.disconnect(this._onCommands, this);
    this._model.dispose();
    super.dispose();
  }

  protected render(): React.ReactElement {
    return <PanelContent model={this._model} commands={this._commands} />;
  }

  protected onActivateRequest(msg: Message): void {
    this.node.focus();
  }

  protected onAfterAttach(msg: Message): void {
    super.onAfterAttach(msg);
    this._model.isVisible = this.isVisible;
  }

  protected onBeforeDetach(msg: Message): void {
    this._model.isVisible = false;
    super.onBeforeDetach(msg);
  }

  protected onAfterShow(msg: Message): void {
    this._model.isVisible = this.isVisible;
  }

  protected onAfterHide(msg: Message): void {
    this._model.isVisible = false;
  }

  /** Plugins that are loaded or removed change the set of commands. */
  private _onCommands(
    _: CommandRegistry,
    { id, type }: CommandRegistry.ICommandChangedArgs
  ): void {
    const ours: string[] = Object.values(CommandIDs);
    if ((type === 'added' || type === 'removed') && ours.includes(id ?? '')) {
      this.update();
    }
  }
}
