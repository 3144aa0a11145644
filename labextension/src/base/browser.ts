/** Page visibility and a monotonic clock, as the browser has them. */

import { Signal, type ISignal } from '@lumino/signaling';

import { Disposable } from './disposable';

/** Visibility of the page. */
export interface IVisibility {
  readonly hidden: boolean;
  readonly changed: ISignal<IVisibility, void>;
}

/** Visibility as the browser reports it, so that models need no DOM. */
export class PageVisibility extends Disposable implements IVisibility {
  constructor() {
    super();
    document.addEventListener('visibilitychange', this._onChange);
  }

  get hidden(): boolean {
    return document.hidden;
  }

  readonly changed = new Signal<this, void>(this);

  dispose(): void {
    document.removeEventListener('visibilitychange', this._onChange);
    super.dispose();
  }

  private readonly _onChange = () => this.changed.emit();
}

/** Return seconds on a monotonic clock. */
export const clock = () => performance.now() / 1000;
