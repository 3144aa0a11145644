import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';

import { Disposable } from '../disposable';
import { beginUpdate, continueUpdate } from '../measure';
import type { IStatus } from '../protocol';
import type { IVisibility } from '../visibility';
import { deviceView } from './devices';
import type { IHistoryModel } from './history';
import { MemoryPace } from './memorypace';
import { Names } from './named';
import { kindOf, NOTHING, settingsOf, type IPanelView } from './panelview';
import { remembered } from './phrases';
import { reuse } from './reuse';
import { rowOf } from './rows';
import type { ISharingModel } from './sharing';
import { TimelineModel, type ILaneClient } from './timeline';

export type { IPanelView, ISettingsView } from './panelview';

/** Milliseconds; the times that are shown have whole seconds. */
const TICK = 1000;
/** Milliseconds; nobody reads faster, and turns may pass within a few. */
const REST = 250;

/**
 * What the side panel shows. It asks for nothing, and changes nothing, unless
 * the panel and the page can be seen.
 */
export class PanelModel extends Disposable {
  constructor(options: PanelModel.IOptions) {
    super();
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

  dispose(): void {
    this.isVisible = false;
    super.dispose();
  }

  private _activate(): void {
    const isActive =
      this._isVisible && !this._visibility.hidden && !this.isDisposed;
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
      this._memory.look();
      this._refresh(true);
    }
  }

  private _onTick(): void {
    beginUpdate();
    this._memory.look();
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

  private _readyView(latest: IStatus): IPanelView {
    const trans = this._trans;
    const status = this._memory.of(latest);
    const age = this._sharing.age;
    this._names.update(status.clients, this._history.lanes);
    const nameOf = (id: string) => this._names.get(id);
    const ordered = this._names.inOrder(status.clients);
    const clients = new Map(ordered.map(([client]) => [client.id, client]));
    const newer = this._newerUtilisation(latest);
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
      ...this._names.inOrder(clients).map(([client, named]) => ({
        named,
        phase: client.state === 'held' ? 'held' : client.phase,
        cells: client.cells
      })),
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
  private readonly _memory = new MemoryPace();
  private _view = NOTHING;
  private _utilisation: {
    told: Readonly<Record<string, number | null>>;
    at: IStatus | null;
  } = { told: {}, at: null };
  private _watches: IDisposable[] = [];
  private _resting: ReturnType<typeof setTimeout> | null = null;
  private _isStale = false;
  private _isVisible = false;
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
