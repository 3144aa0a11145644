/**
 * Base classes of objects with signals: disposable, and switched by a setting.
 */

import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import type { SettingsModel } from './settings';

/**
 * An object that has signals, or listens to signals, until the object is
 * disposed.
 *
 * A subclass with timers or watches overrides {@link dispose}. The override
 * must allow a second call, and calls this method last.
 */
export abstract class Disposable implements IDisposable {
  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    this._isDisposed = true;
    // Also disconnects the slots that were connected with `this` as their
    // owner.
    Signal.clearData(this);
  }

  private _isDisposed = false;
}

type Switch = 'showStatusItem' | 'showToolbarChip' | 'showWaiting';

/** An object that a setting of the user switches on and off. */
export abstract class Toggleable extends Disposable {
  get isEnabled(): boolean {
    return this._isEnabled;
  }
  set isEnabled(value: boolean) {
    this._isEnabled = value;
    this.refresh();
  }

  /** Take {@link isEnabled} from a setting, now and after each change. */
  bindTo(settings: SettingsModel, name: Switch): void {
    const apply = () => {
      this.isEnabled = settings.values[name];
    };
    settings.changed.connect(apply, this);
    apply();
  }

  /**
   * Update what is shown or done, after a change of {@link isEnabled} or of a
   * source.
   */
  protected abstract refresh(): void;

  private _isEnabled = true;
}
