import { Signal, type ISignal } from '@lumino/signaling';

import { Disposable } from './disposable';

/** Whether the page can be seen. */
export interface IVisibility {
  readonly hidden: boolean;
  readonly changed: ISignal<IVisibility, void>;
}

/** The browser's own answer, so that the models need no DOM. */
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

/** Seconds that only go forward. */
export const clock = () => performance.now() / 1000;
