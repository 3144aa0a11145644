import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import type { SettingsModel } from './settings';

/**
 * An object that has signals, and listens to those of others, until it is
 * disposed. A subclass with more to end (timers, watches) overrides
 * {@link dispose}, in a way that can be done twice, and calls this one last.
 */
export abstract class Disposable implements IDisposable {
  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    // Also those of others that were connected with `this`.
    Signal.clearData(this);
  }

  private _isDisposed = false;
}

type Switch = 'showStatusItem' | 'showToolbarChip' | 'showWaiting';

/** One that a setting of the user switches off and on. */
export abstract class Toggleable extends Disposable {
  get isEnabled(): boolean {
    return this._isEnabled;
  }
  set isEnabled(value: boolean) {
    this._isEnabled = value;
    this.refresh();
  }

  /** Let a setting switch it. */
  bindTo(settings: SettingsModel, name: Switch): void {
    const apply = () => {
      this.isEnabled = settings.values[name];
    };
    settings.changed.connect(apply, this);
    apply();
  }

  /** Look again at what there is to show or do. */
  protected abstract refresh(): void;

  private _isEnabled = true;
}
