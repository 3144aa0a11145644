import { Signal, type ISignal } from '@lumino/signaling';

/** What the user wants to see; as in `schema/plugin.json`. */
export interface ISettings {
  readonly showStatusItem: boolean;
  readonly showToolbarChip: boolean;
  readonly showWaiting: boolean;
  /** Seconds that a wait must last for its end to be told; 0: never. */
  readonly notifyAfterWait: number;
  /** Whether to tell when a kernel leaves the GPU because nobody uses it. */
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

/** The user's settings, live. */
export interface ISettingsModel {
  readonly values: ISettings;
  /** Emitted when any of {@link values} reads differently. */
  readonly changed: ISignal<ISettingsModel, void>;
  /** Change one, for good. */
  set<K extends keyof ISettings>(name: K, value: ISettings[K]): void;
}

/** {@link ISettingsModel} over any source of values. */
export class SettingsModel implements ISettingsModel {
  get values(): ISettings {
    return this._values;
  }

  readonly changed = new Signal<this, void>(this);

  /** Take over what is given; what is missing, or of another type, stays. */
  update(composite: Readonly<Record<string, unknown>>): void {
    const names = Object.keys(DEFAULTS) as (keyof ISettings)[];
    const news = names.filter(
      name =>
        typeof composite[name] === typeof DEFAULTS[name] &&
        composite[name] !== this._values[name]
    );
    if (news.length > 0) {
      const changes = news.map(name => [name, composite[name]]);
      this._values = { ...this._values, ...Object.fromEntries(changes) };
      this.changed.emit();
    }
  }

  /** Where changes are kept; without it they are forgotten with the page. */
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
