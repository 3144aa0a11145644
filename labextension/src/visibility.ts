import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

/** Whether anyone can see the page. */
export interface IVisibility {
  readonly hidden: boolean;
  readonly changed: ISignal<IVisibility, void>;
}

/** The browser's own answer, so that the models need no DOM. */
export class PageVisibility implements IVisibility, IDisposable {
  constructor() {
    document.addEventListener('visibilitychange', this._onChange);
  }

  get hidden(): boolean {
    return document.hidden;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    document.removeEventListener('visibilitychange', this._onChange);
    Signal.clearData(this);
  }

  private readonly _onChange = () => this._changed.emit();
  private _changed = new Signal<this, void>(this);
  private _isDisposed = false;
}
