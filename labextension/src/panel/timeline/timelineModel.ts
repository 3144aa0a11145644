import { Signal } from '@lumino/signaling';

import type { SettingsModel } from '../../base/settings';
import { trans } from '../../base/trans';
import type { IClientLabel } from '../../sharing/clientLabels';
import type { HistoryModel } from '../../history/historyModel';
import {
  isLaneState,
  type ILane,
  type LaneState,
  laneText,
  periodText
} from '../../history/lanes';
import { blockRanges, lanePaths, markPath } from './lanePaths';

/** Minutes that can be looked at. */
export const VISIBLE_SPANS: ReadonlyArray<number> = [2, 5, 10];

/** One client's lane, with its SVG path data. */
export interface ILaneView extends IClientLabel {
  readonly isGone: boolean;
  readonly paths: ReadonlyArray<readonly [LaneState, string]>;
  readonly starts: string;
  readonly ends: string;
  readonly summary: string;
}

export interface ITimelineView {
  /** Seconds that are seen. */
  readonly span: number;
  readonly isPaused: boolean;
  /** The right end of what is seen, in seconds on the coordinator's clock. */
  readonly now: number;
  readonly lanes: ReadonlyArray<ILaneView>;
}

/** A client in the timeline: its name, and its state if the history has none. */
export interface ILaneClient {
  readonly label: IClientLabel;
  readonly phase: string;
  readonly cells?: number;
}

/** What the timeline shows, of the history and of the user's choice. */
export class TimelineModel {
  constructor(
    private readonly _history: HistoryModel,
    private readonly _settings: SettingsModel
  ) {
    _settings.changed.connect(() => this.update());
  }

  readonly changed = new Signal<this, void>(this);

  /** Null while nothing is known. */
  get view(): ITimelineView | null {
    return this._view;
  }

  get isPaused(): boolean {
    return this._pausedAt !== null;
  }
  set isPaused(value: boolean) {
    this._pausedAt = value ? this._history.now : null;
    this.update();
  }

  /** Seconds that are seen; the user's settings keep them. */
  get span(): number {
    return this._settings.values.timelineMinutes * 60;
  }
  set span(seconds: number) {
    this._settings.set('timelineMinutes', seconds / 60);
  }

  /**
   * Look at the history again.
   *
   * @param clients - those with a lane, in this order; without it as before
   */
  update(clients = this._clients): void {
    this._clients = clients;
    const now = this._pausedAt ?? this._history.now;
    this._view =
      now === null
        ? null
        : {
            span: this.span,
            isPaused: this.isPaused,
            now,
            lanes: clients.flatMap(client => this._laneView(client, now) ?? [])
          };
    this.changed.emit();
  }

  /** What a client did at a time, as a sentence; empty for one without a lane. */
  describe(id: string, at: number): string {
    const period = this._lane(id)?.periods.find(
      ({ from, to }) => from <= at && (to === null || at < to)
    );
    const view = this._view?.lanes.find(lane => lane.id === id);
    if (!view) {
      return '';
    }
    if (!period) {
      return trans.__('%1: nothing is known of this time', view.name);
    }
    const now = Math.max(at, this._history.now ?? at);
    return periodText(view.name, period, now);
  }

  /** A time in the next (or, backwards, the previous) period of a lane that is seen. */
  neighbour(id: string, at: number, isBackwards: boolean): number | null {
    const periods = this._lane(id)?.periods ?? [];
    const index = periods.findIndex(({ to }) => to === null || at < to);
    const period = periods[index + (isBackwards ? -1 : 1)];
    if (!this._view || !period || index === -1) {
      return null;
    }
    const { now, span } = this._view;
    const from = Math.max(period.from, now - span);
    const to = Math.min(period.to ?? now, now);
    return from < to ? (from + to) / 2 : null;
  }

  private _laneView(
    { label, cells = 0 }: ILaneClient,
    now: number
  ): ILaneView | null {
    const lane = this._lane(label.id);
    const begin = now - this.span;
    const running = this.isPaused ? 0 : cells;
    return (
      lane && {
        ...label,
        isGone: lane.isGone,
        paths: lanePaths(blockRanges(lane.periods, begin, now)),
        starts: markPath(lane.starts, begin, now, 6),
        ends: markPath(lane.ends, begin, now, 3),
        summary: laneText(lane, now, this.span, running)
      }
    );
  }

  /** The history's lane; without one the client has done the same all the time. */
  private _lane(id: string): ILane | null {
    const lane = this._history.lanes.get(id);
    if (lane && lane.periods.length > 0) {
      return lane;
    }
    const phase = this._clients.find(({ label }) => label.id === id)?.phase;
    if (!phase) {
      return null;
    }
    const state = isLaneState(phase) ? phase : 'idle';
    return {
      id,
      periods: [{ state, from: -Infinity, to: null }],
      starts: lane?.starts ?? [],
      ends: lane?.ends ?? [],
      isGone: false
    };
  }

  private _clients: ReadonlyArray<ILaneClient> = [];
  private _view: ITimelineView | null = null;
  private _pausedAt: number | null = null;
}
