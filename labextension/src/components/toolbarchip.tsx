import { caretDownIcon, VDomRenderer } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { StatusItemModel } from '../model/statusitem';
import { StateButton } from './statebutton';

/** The state of a notebook's kernel in its toolbar: a button with a menu. */
export class ToolbarChip extends VDomRenderer<StatusItemModel> {
  constructor(private readonly _options: ToolbarChip.IOptions) {
    super(_options.model);
    this.addClass('gpushare-ToolbarChip');
    this.hide();
  }

  /** Whether the menu is open. */
  get isOpen(): boolean {
    return this._isOpen;
  }
  set isOpen(value: boolean) {
    this._isOpen = value;
    this.update();
  }

  /** Give the focus to the button. */
  focus(): void {
    this.node.querySelector('button')?.focus();
  }

  protected render(): React.ReactElement | null {
    const { model } = this;
    if (!model) {
      return null;
    }
    return (
      <StateButton
        className="gpushare-ToolbarChip-button"
        phase={model.phase}
        title={model.text}
        aria-label={model.text}
        aria-haspopup="menu"
        aria-expanded={this._isOpen}
        onClick={() => this._options.onActivate(this)}
        onKeyDown={event => {
          if (event.key === 'ArrowDown' && !this._isOpen) {
            event.preventDefault();
            event.stopPropagation();
            this._options.onActivate(this);
          }
        }}
        announcement={this._options.speaks ? model.announcement : undefined}
      >
        <span
          className="gpushare-ToolbarChip-text"
          data-texts={this._options.texts}
        >
          {model.shortText}
        </span>
        <caretDownIcon.react
          tag="span"
          className="gpushare-ToolbarChip-caret"
        />
      </StateButton>
    );
  }

  private _isOpen = false;
}

export namespace ToolbarChip {
  export interface IOptions {
    model: StatusItemModel;
    /** All that it may read, a line each: it has room for each of them. */
    texts: string;
    /** Whether it announces changes: nothing else on the page does. */
    speaks: boolean;
    /** Called when it is clicked, or activated by the keyboard. */
    onActivate: (chip: ToolbarChip) => void;
  }
}
