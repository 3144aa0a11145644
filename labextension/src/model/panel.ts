import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { beginUpdate, continueUpdate } from '../measure';
import {
  NO_EXTENSION,
  NOT_RUNNING,
  type IAway,
  type IConfig,
  type IStatus
} from '../protocol';
import type { IVisibility } from '../visibility';
import { deviceView, type IDeviceView } from './devices';
import { formatDuration } from './format';
import type { IHistoryModel } from './history';
import { Names } from './named';
import { remembered } from './phrases';
import { rowOf, type IRow } from './rows';
import type { ISharingModel } from './sharing';
import { TimelineModel, type ILaneClient } from './timeline';

/** Milliseconds; the times that are shown have whole seconds. */
const TICK = 1000;
/** Milliseconds; nobody reads faster, and turns may pass within a few. */
const REST = 250;

/**
 * What there is to show: `connecting` before the first answer, `missing` on a
 * server without the extension, `stopped` while no coordinator is needed,
 * `away` while one is missed (the last that was known is shown), else `ready`.
 */
export type PanelKind = 'connecting' | 'missing' | 'stopped' | 'away' | 'ready';

/** Settings of the coordinator, in words. */
export interface ISettingsView {
  readonly quantum: string;
  readonly policy: string;
  /** Whether the user may change them. */
  readonly isAdmin: boolean;
}

/** All that the panel shows, but for the timeline. */
export interface IPanelView {
  readonly kind: PanelKind;
  /** Why it is `away`. */
  readonly reason: string;
  readonly devices: ReadonlyArray<IDeviceView>;
  readonly own: ReadonlyArray<IRow>;
  readonly others: ReadonlyArray<IRow>;
  /** Null if the server does not tell. */
  readonly settings: ISettingsView | null;
}

const NOTHING: IPanelView = {
  kind: 'connecting',
  reason: '',
  devices: [],
  own: [],
  others: [],
  settings: null
};

/**
 * What the side panel shows. It asks for nothing, and changes nothing, unless
 * the panel and the page can be seen.
 */
export class PanelModel implements IDisposable {
  constructor(options: PanelModel.IOptions) {
    this._sharing = options.sharing;
    this._history = options.history;
    this._visibility = options.visibility;
    this._trans = remembered(options.trans);
    this._names = new Names(this._trans);
    this.timeline = new TimelineModel(options.history, this._trans);
    this._sharing.changed.connect(this._onSharing, this);
    this._history.changed.connect(this._onHistory, this);
    this._visibility.changed.connect(this._activate, this);
  }

  readonly timeline: TimelineModel;

  /** Emitted when {@link view} is another. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The same object as long as nothing in it is different; so are its parts. */
  get view(): IPanelView {
    return this._view;
  }

  /** Whether the panel is shown. */
  get isVisible(): boolean {
    return this._isVisible;
  }
  set isVisible(value: boolean) {
    this._isVisible = value;
    this._activate();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isVisible = false;
    this._activate();
    this._isDisposed = true;
    Signal.clearData(this);
  }

  private _activate(): void {
    const isActive =
      this._isVisible && !this._visibility.hidden && !this._isDisposed;
    if (isActive === this._watches.length > 0) {
      return;
    }
    this._watches.forEach(watch => watch.dispose());
    clearInterval(this._timer);
    clearTimeout(this._resting ?? undefined);
    this._resting = null;
    this._watches = [];
    if (isActive) {
      this._watches = [this._sharing.watch(), this._history.watch()];
      this._timer = setInterval(() => this._onTick(), TICK);
      this._refresh(true);
    }
  }

  private _onTick(): void {
    beginUpdate();
    this._refresh(true);
  }

  /** At once if it has been quiet, else with what comes until the rest is over. */
  private _onSharing(): void {
    if (this._watches.length === 0) {
      return;
    }
    if (this._resting !== null) {
      this._isStale = true;
      return;
    }
    this._refresh(false);
    this._resting = setTimeout(() => {
      this._resting = null;
      if (this._isStale) {
        beginUpdate();
        this._onSharing();
      }
    }, REST);
  }

  private _onHistory(): void {
    this._refresh(true);
  }

  private _refresh(withTimeline: boolean): void {
    if (this._watches.length === 0) {
      return;
    }
    continueUpdate();
    this._isStale = false;
    const view = reuse(this._view, this._look());
    // The timeline moves by itself; a name that is new can wait for a second.
    if (withTimeline && view.kind === 'ready') {
      this.timeline.update(this._laneClients());
    }
    if (view !== this._view) {
      this._view = view;
      this._changed.emit();
    }
  }

  private _look(): IPanelView {
    const { status, away } = this._sharing;
    const kind = kindOf(status, away);
    const reason = away?.message ?? '';
    if (!status || (kind !== 'ready' && kind !== 'away')) {
      return { ...NOTHING, kind, reason };
    }
    if (kind === 'away') {
      // Times that nobody can know any more stand still.
      const isKnown = this._view.devices.length > 0;
      const last = isKnown ? this._view : this._readyView(status);
      return { ...last, kind, reason };
    }
    return { ...this._readyView(status), kind, reason };
  }

  private _readyView(status: IStatus): IPanelView {
    const trans = this._trans;
    const age = this._sharing.age;
    this._names.update(status.clients, this._history.lanes);
    const nameOf = (id: string) => this._names.get(id);
    const ordered = this._names.inOrder(status.clients);
    const clients = new Map(ordered.map(([client]) => [client.id, client]));
    const newer = this._newerUtilisation(status);
    const devices = status.devices.map(device =>
      deviceView(device, clients, nameOf, newer[device.uuid], age, trans)
    );
    const rows = ordered.map(([client, named]) =>
      rowOf(client, named, status.devices, age, trans)
    );
    const own = rows.filter(row => row.named.isOwn);
    const others = rows.filter(row => !row.named.isOwn);
    const settings = settingsOf(status, trans);
    return { ...NOTHING, devices, own, others, settings };
  }

  /** What the history says, unless a snapshot has come after it. */
  private _newerUtilisation(
    status: IStatus
  ): Readonly<Record<string, number | null>> {
    const told = this._history.utilisation;
    if (told !== this._utilisation.told) {
      this._utilisation = { told, at: status };
    }
    return this._utilisation.at === status ? told : {};
  }

  /** In the order of the rows; who has left comes last. */
  private _laneClients(): ILaneClient[] {
    const clients = this._sharing.status?.clients ?? [];
    const present = new Set(clients.map(client => client.id));
    const gone = [...this._history.lanes.keys()].filter(id => !present.has(id));
    return [
      ...this._names
        .inOrder(clients)
        .map(([{ phase }, named]) => ({ named, phase: phase as string })),
      ...gone.flatMap(id => {
        const named = this._names.get(id);
        return named ? [{ named, phase: '' }] : [];
      })
    ];
  }

  private readonly _sharing: ISharingModel;
  private readonly _history: IHistoryModel;
  private readonly _visibility: IVisibility;
  private readonly _trans: TranslationBundle;
  private readonly _names: Names;
  private _view = NOTHING;
  private _utilisation: {
    told: Readonly<Record<string, number | null>>;
    at: IStatus | null;
  } = { told: {}, at: null };
  private _watches: IDisposable[] = [];
  private _resting: ReturnType<typeof setTimeout> | null = null;
  private _isStale = false;
  private _isVisible = false;
  private _isDisposed = false;
  private _timer?: ReturnType<typeof setInterval>;
  private _changed = new Signal<this, void>(this);
}

export namespace PanelModel {
  export interface IOptions {
    sharing: ISharingModel;
    history: IHistoryModel;
    visibility: IVisibility;
    trans: TranslationBundle;
  }
}

function kindOf(status: IStatus | null, away: IAway | null): PanelKind {
  if (away) {
    switch (away.reason) {
      case NOT_RUNNING:
        return 'stopped';
      case NO_EXTENSION:
        return 'missing';
      default:
        return 'away';
    }
  }
  return status ? 'ready' : 'connecting';
}

function settingsOf(
  { config, you }: IStatus,
  trans: TranslationBundle
): ISettingsView | null {
  return config.policy === undefined
    ? null
    : {
        quantum: quantumText(config, trans),
        policy: config.policy,
        isAdmin: you?.admin === true
      };
}

function quantumText(config: IConfig, trans: TranslationBundle): string {
  const quantum = config.time_quantum;
  return typeof quantum === 'number'
    ? formatDuration(quantum, trans)
    : trans.__('automatic');
}

/**
 * `next`, with every part that equals that of `last` replaced by it, so that
 * what is drawn from these parts need not be drawn again.
 */
function reuse<T>(last: T, next: T): T {
  if (Array.isArray(last) && Array.isArray(next)) {
    const merged = next.map((item, i) => reuse(matching(last, item, i), item));
    const isSame =
      merged.length === last.length && merged.every((m, i) => m === last[i]);
    return isSame ? last : (merged as T);
  }
  if (isRecord(last) && isRecord(next)) {
    const merged: Record<string, unknown> = {};
    let isSame = true;
    for (const key of Object.keys(next)) {
      merged[key] = reuse(last[key], next[key]);
      isSame &&= merged[key] === last[key];
    }
    return isSame && Object.keys(last).length === Object.keys(next).length
      ? last
      : (merged as T);
  }
  return next;
}

/** The item that stood for the same before; most keep their places. */
function matching(last: unknown[], item: unknown, index: number): unknown {
  const id = idOf(item);
  return id === undefined || idOf(last[index]) === id
    ? last[index]
    : last.find(other => idOf(other) === id);
}

function idOf(item: unknown): unknown {
  if (!isRecord(item)) {
    return undefined;
  }
  const { named, uuid, key } = item as Record<string, unknown>;
  return isRecord(named) ? named.id : (uuid ?? key);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
