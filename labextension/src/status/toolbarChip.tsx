/**
 * Toolbar item of a notebook: a button that shows the kernel's state and opens
 * a
 * menu.
 */

import { caretDownIcon, VDomRenderer } from '@jupyterlab/ui-components';
import * as React from 'react';

import { chipTexts } from './headline';
import { StateButton } from './stateButton';
import type { StatusItemModel } from './statusItemModel';

/**
 * State of a notebook's kernel in the notebook's toolbar: a button with a menu.
 */
export class ToolbarChip extends VDomRenderer<StatusItemModel> {
  constructor(private readonly _options: ToolbarChip.IOptions) {
    super(_options.model);
    this.addClass('gpushare-ToolbarChip');
    _options.model.stateChanged.connect(this._check, this);
    this._check();
  }

  get isOpen(): boolean {
    return this._isOpen;
  }
  set isOpen(value: boolean) {
    this._isOpen = value;
    this.update();
  }

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
        announcement={this._options.announces ? model.announcement : undefined}
      >
        <span className="gpushare-ToolbarChip-text" data-texts={chipTexts()}>
          {model.shortText}
        </span>
        <caretDownIcon.react
          tag="span"
          className="gpushare-ToolbarChip-caret"
        />
      </StateButton>
    );
  }

  private _check(): void {
    const { isShared, isShown } = this._options.model;
    this.setHidden(!isShared || !isShown);
  }

  private _isOpen = false;
}

export namespace ToolbarChip {
  export interface IOptions {
    model: StatusItemModel;
    /**
     * True if the chip announces changes, because the page has no status item.
     */
    announces: boolean;
    /** Function for a click or a key press. */
    onActivate: (chip: ToolbarChip) => void;
  }
}
