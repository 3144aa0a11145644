/** Node below a waiting cell, with text and progress. */

import { Disposable } from '../base/disposable';
import { trans } from '../base/trans';
import type { WaitModel } from './waitModel';

/**
 * Node below a cell that waits.
 *
 * The node is no widget of the cell's layout. A notebook removes cells from the
 * page and adds them again while the user scrolls. A plain node moves with its
 * cell, and can be removed at any time.
 */
export class WaitingView extends Disposable {
  constructor(private readonly _resume: (clientId: string) => void) {
    super();
    this.node.className = 'gpushare-Waiting';
    this._bar.className = 'gpushare-Waiting-bar';
    this._bar.setAttribute('role', 'progressbar');
    this._bar.setAttribute('aria-label', trans.__('Wait for the GPU'));
    this._bar.setAttribute('aria-valuemin', '0');
    this._bar.setAttribute('aria-valuemax', '100');
    this._bar.append(this._part);
    this._text.className = 'gpushare-Waiting-text';
    this._button.type = 'button';
    this._button.className = 'gpushare-Waiting-button jp-mod-styled';
    this._button.textContent = trans.__('Resume');
    this._button.onclick = () => this._resume(this._client);
    this._line.className = 'gpushare-Waiting-line';
    this._line.append(this._text, this._button);
    this.node.append(this._line, this._bar);
  }

  readonly node = document.createElement('div');

  /** Show the wait at the end of a cell's node. */
  show(host: HTMLElement, state: WaitModel.IState<unknown>): void {
    this._client = state.client;
    this._text.textContent = state.text;
    this._button.hidden = !state.isSuspended;
    this._bar.hidden = state.isSuspended;
    this._showFraction(state.fraction);
    if (this.node.parentElement !== host) {
      host.append(this.node);
    }
  }

  hide(): void {
    this.node.remove();
  }

  dispose(): void {
    this.hide();
    super.dispose();
  }

  private _showFraction(fraction: number | undefined): void {
    this._bar.classList.toggle(
      'gpushare-mod-indeterminate',
      fraction === undefined
    );
    if (fraction === undefined) {
      this._bar.removeAttribute('aria-valuenow');
      this._part.style.removeProperty('width');
    } else {
      const percent = `${Math.round(fraction * 100)}`;
      this._bar.setAttribute('aria-valuenow', percent);
      this._part.style.width = `${percent}%`;
    }
  }

  private readonly _line = document.createElement('div');
  private readonly _text = document.createElement('span');
  private readonly _button = document.createElement('button');
  private readonly _bar = document.createElement('div');
  private readonly _part = document.createElement('div');
  private _client = '';
}
