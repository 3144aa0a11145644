import { Signal } from '@lumino/signaling';

/** What the user wants to see; as in `schema/plugin.json`. */
export interface ISettings {
  readonly showStatusItem: boolean;
  readonly showToolbarChip: boolean;
  readonly showWaiting: boolean;
  /** Seconds that a wait must last for a notification of its end; 0: never. */
  readonly notifyAfterWait: number;
  /** Whether to notify when a kernel leaves the GPU because it is not used. */
  readonly notifyIdle: boolean;
  /** Seconds between two requests where no WebSocket gets through. */
  readonly pollInterval: number;
  /** Minutes that the timeline shows. */
  readonly timelineMinutes: number;
}

/** The same as the schema's; also without a settings registry. */
export const DEFAULTS: ISettings = {
  showStatusItem: true,
  showToolbarChip: true,
  showWaiting: true,
  notifyAfterWait: 60,
  notifyIdle: true,
  pollInterval: 5,
  timelineMinutes: 5
};

/** The user's settings, live, over any source of values. */
export class SettingsModel {
  get values(): ISettings {
    return this._values;
  }

  /** Emitted when any of {@link values} is another. */
  readonly changed = new Signal<this, void>(this);

  /** Adopt the values given; what is missing, or of another type, stays. */
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

  /** Where changes are kept; without it they are lost with the page. */
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
