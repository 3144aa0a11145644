/** Model of the timeline, from the history and the user's choices. */

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

/** Choices of the visible span, in minutes. */
export const VISIBLE_SPANS: ReadonlyArray<number> = [2, 5, 10];

/** Lane of one client, with its SVG path data. */
export interface ILaneView extends IClientLabel {
  readonly isGone: boolean;
  readonly paths: ReadonlyArray<readonly [LaneState, string]>;
  readonly starts: string;
  readonly ends: string;
  readonly summary: string;
}

export interface ITimelineView {
  /** Visible seconds. */
  readonly span: number;
  readonly isPaused: boolean;
  /** End of the visible span, in seconds on the coordinator's clock. */
  readonly now: number;
  readonly lanes: ReadonlyArray<ILaneView>;
}

/** A client of the timeline, with its state for a lane without history. */
export interface ILaneClient {
  readonly label: IClientLabel;
  readonly phase: string;
  readonly cells?: number;
}

/** Model of the timeline, from the history and the user's choices. */
export class TimelineModel {
  constructor(
    private readonly _history: HistoryModel,
    private readonly _settings: SettingsModel
  ) {}

  readonly changed = new Signal<this, void>(this);

  /** Null before the first history. */
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

  /** Visible seconds, which a setting of the user stores. */
  get span(): number {
    return this._settings.values.timelineMinutes * 60;
  }
  set span(seconds: number) {
    this._settings.set('timelineMinutes', seconds / 60);
  }

  /**
   * Update the view from the history and the settings.
   *
   * @param clients - clients with a lane, in the order of lanes
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

  /**
   * Describe a client's state at a time in a sentence; empty for a client
   * without a lane.
   */
  describe(id: string, at: number): string {
    const period = this._lane(id)?.periods.find(
      ({ from, to }) => from <= at && (to === null || at < to)
    );
    const view = this._view?.lanes.find(lane => lane.id === id);
    if (!view) {
      return '';
    }
    if (!period) {
      return trans.__('%1: state unknown at this time', view.name);
    }
    const now = Math.max(at, this._history.now ?? at);
    return periodText(view.name, period, now);
  }

  /** Return a time in the next or previous visible period of a lane. */
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

  /**
   * Return a client's lane. A client without history gets one endless period of
   * its present state.
   */
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
