/**
 * Live settings of the user, with defaults for use without a settings
 * registry.
 */

import { Signal } from '@lumino/signaling';

/** Settings of the user, as in `schema/plugin.json`. */
export interface ISettings {
  readonly showStatusItem: boolean;
  readonly showToolbarChip: boolean;
  readonly showWaiting: boolean;
  /** Seconds from which on the end of a wait is notified; 0 for never. */
  readonly notifyAfterWait: number;
  /**
   * True if a notification reports a kernel that the idle policy evicts or
   * suspends.
   */
  readonly notifyIdle: boolean;
  /** Seconds between two requests without a WebSocket. */
  readonly pollInterval: number;
  /** Minutes that the timeline shows. */
  readonly timelineMinutes: number;
}

/**
 * Defaults, equal to those of the schema, for use without a settings registry.
 */
export const DEFAULTS: ISettings = {
  showStatusItem: true,
  showToolbarChip: true,
  showWaiting: true,
  notifyAfterWait: 60,
  notifyIdle: true,
  pollInterval: 5,
  timelineMinutes: 5
};

/** Live settings of the user, from any source of values. */
export class SettingsModel {
  get values(): ISettings {
    return this._values;
  }

  /** Emitted when one of {@link values} changes. */
  readonly changed = new Signal<this, void>(this);

  /**
   * Adopt the given values. Skip a missing value, or a value of another type.
   */
  update(composite: Readonly<Record<string, unknown>>): void {
    const names = Object.keys(DEFAULTS) as (keyof ISettings)[];
    const changed = names.filter(
      name =>
        typeof composite[name] === typeof DEFAULTS[name] &&
        composite[name] !== this._values[name]
    );
    if (changed.length > 0) {
      const changes = changed.map(name => [name, composite[name]]);
      this._values = { ...this._values, ...Object.fromEntries(changes) };
      this.changed.emit();
    }
  }

  /**
   * Function that stores a change; null while changes last only as long as the
   * page.
   */
  keep: ((name: string, value: ISettings[keyof ISettings]) => void) | null =
    null;

  set<K extends keyof ISettings>(name: K, value: ISettings[K]): void {
    if (value !== this._values[name]) {
      this.update({ [name]: value });
      this.keep?.(name, value);
    }
  }

  private _values = DEFAULTS;
}
