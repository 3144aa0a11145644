/** Model of the side panel, which updates only while the panel is visible. */

import type { IDisposable } from '@lumino/disposable';
import { Throttler } from '@lumino/polling';
import { Signal } from '@lumino/signaling';

import type { IVisibility } from '../base/browser';
import { Disposable } from '../base/disposable';
import type { IStatus } from '../base/protocol';
import type { SettingsModel } from '../base/settings';
import { ClientLabels } from '../sharing/clientLabels';
import type { SharingModel } from '../sharing/sharingModel';
import { startView } from '../sharing/waitingStart';
import type { HistoryModel } from '../history/historyModel';
import { TimelineModel, type ILaneClient } from './timeline/timelineModel';
import { clientRowView } from './clientRowView';
import { deviceView } from './deviceView';
import {
  panelKind,
  EMPTY_VIEW,
  settingsView,
  type IPanelView
} from './panelView';

/** Interval of updates, because the visible times have whole seconds. */
const TICK_MS = 1000;
/**
 * Minimum between two updates by snapshots or histories, because turns may be a
 * few milliseconds long.
 */
const MIN_UPDATE_INTERVAL_MS = 250;

/**
 * Model of the side panel.
 *
 * The model watches and updates only while both the panel and the page are
 * visible.
 */
export class PanelModel extends Disposable {
  constructor(private readonly _options: PanelModel.IOptions) {
    super();
    const { sharing, history, settings, visibility } = _options;
    this._labels = new ClientLabels();
    this.timeline = new TimelineModel(history, settings);
    sharing.changed.connect(this._onChange, this);
    history.changed.connect(this._onChange, this);
    settings.changed.connect(this._onSettings, this);
    visibility.changed.connect(this._activate, this);
  }

  readonly timeline: TimelineModel;

  readonly changed = new Signal<this, void>(this);

  get view(): IPanelView {
    return this._view;
  }

  get isVisible(): boolean {
    return this._isVisible;
  }
  set isVisible(value: boolean) {
    this._isVisible = value;
    this._activate();
  }

  dispose(): void {
    this.isVisible = false;
    this._throttler.dispose();
    super.dispose();
  }

  private _activate(): void {
    const { sharing, history, visibility } = this._options;
    const isActive = this._isVisible && !visibility.hidden && !this.isDisposed;
    if (isActive === this._watches.length > 0) {
      return;
    }
    this._watches.forEach(watch => watch.dispose());
    clearInterval(this._timer);
    this._watches = [];
    if (isActive) {
      this._watches = [sharing.watch(), history.watch()];
      this._timer = setInterval(() => this._refresh(), TICK_MS);
      this._view = EMPTY_VIEW; // the last view may be much older than the last snapshot
      this._onSettings();
      this._refresh();
    }
  }

  private _onChange(): void {
    void this._throttler.invoke();
  }

  /** Show the visible span of the settings, also without a new snapshot. */
  private _onSettings(): void {
    if (this._watches.length > 0) {
      this.timeline.update();
    }
  }

  private _refresh(): void {
    if (this._watches.length === 0) {
      return;
    }
    this._view = this._buildView();
    if (this._view.kind === 'ready') {
      this.timeline.update(this._laneClients());
    }
    this.changed.emit();
  }

  private _buildView(): IPanelView {
    const { status, unavailable } = this._options.sharing;
    const kind = panelKind(status, unavailable);
    const reason = unavailable?.message ?? '';
    if (!status || (kind !== 'ready' && kind !== 'unavailable')) {
      return { ...EMPTY_VIEW, kind, reason };
    }
    // The times of the view stop while the coordinator is unavailable.
    const isKnown = kind === 'unavailable' && this._view.hosts.length > 0;
    return { ...(isKnown ? this._view : this._ready(status)), kind, reason };
  }

  private _ready(status: IStatus): IPanelView {
    const { sharing, history } = this._options;
    const { age } = sharing;
    this._labels.update(status.clients, history.lanes);
    const labelOf = (id: string) => this._labels.get(id);
    const ordered = this._labels.inOrder(status.clients);
    const message = (status.coordinator?.problems ?? []).join('\n');
    const hosts = [{ name: '', message }, ...status.nodes]
      .map(({ name: node, message }) => {
        const clients = new Map(
          ordered
            .filter(([client]) => client.node === node)
            .map(([client]) => [client.id, client])
        );
        const devices = status.devices
          .filter(device => device.node === node)
          .map(device => {
            const busy = node ? undefined : history.utilisation[device.uuid];
            return deviceView(device, clients, labelOf, busy, age);
          });
        return { node, message, devices };
      })
      .filter(({ devices, message }) => devices.length > 0 || message !== '');
    const rows = ordered.map(([client, label]) => {
      const near = status.devices.filter(({ node }) => node === client.node);
      return clientRowView(client, label, near, age);
    });
    const own = rows.filter(row => row.label.isOwn);
    const others = rows.filter(row => !row.label.isOwn);
    const settings = settingsView(status);
    const starts = status.starts.map(start => startView(start, age));
    return { ...EMPTY_VIEW, hosts, starts, own, others, settings };
  }

  /** Clients in the order of the rows, then clients that have left. */
  private _laneClients(): ILaneClient[] {
    const clients = (this._options.sharing.status?.clients ?? []).filter(
      ({ node }) => node === ''
    );
    const present = new Set(clients.map(client => client.id));
    const { lanes } = this._options.history;
    return [
      ...this._labels.inOrder(clients).map(([client, label]) => ({
        label,
        phase: client.state === 'held' ? 'held' : client.phase,
        cells: client.cells
      })),
      ...[...lanes.keys()].flatMap(id => {
        const label = present.has(id) ? undefined : this._labels.get(id);
        return label ? [{ label, phase: '' }] : [];
      })
    ];
  }

  private readonly _labels: ClientLabels;
  private readonly _throttler = new Throttler(() => this._refresh(), {
    limit: MIN_UPDATE_INTERVAL_MS,
    edge: 'trailing'
  });
  private _view = EMPTY_VIEW;
  private _watches: IDisposable[] = [];
  private _isVisible = false;
  private _timer?: ReturnType<typeof setInterval>;
}

export namespace PanelModel {
  export interface IOptions {
    sharing: SharingModel;
    history: HistoryModel;
    settings: SettingsModel;
    visibility: IVisibility;
  }
}
