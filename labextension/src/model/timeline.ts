import type { TranslationBundle } from '@jupyterlab/translation';
import { Signal, type ISignal } from '@lumino/signaling';

import { drawLane, type IDrawing, type IRange } from './drawing';
import type { IHistoryModel } from './history';
import { isLaneState, LANE_STATES, type ILane, type IPeriod } from './lanes';
import { laneText, periodText } from './lanetext';
import type { INamed } from './named';

/** Minutes that can be looked at. */
export const SPANS: ReadonlyArray<number> = [2, 5, 10];

/** The strip that is drawn is so many times as long as what is seen of it. */
const STRIP = 3;
/** Pixels, at least, that the timeline is taken to have: it is never asked. */
const PIXELS = 600;
/** Seconds between two looks beyond which it jumps instead of moving on. */
const JUMP = 2.5;

/** One client's lane, ready to be drawn. */
export interface ILaneView extends INamed {
  readonly isGone: boolean;
  readonly drawing: IDrawing;
  /** What the lane shows, for who cannot see it. */
  readonly summary: string;
}

export interface ITimelineView {
  /** Seconds that are seen. */
  readonly span: number;
  readonly isPaused: boolean;
  /** Where the strip begins, in seconds on the coordinator's clock. */
  readonly from: number;
  /** Seconds that are drawn. */
  readonly length: number;
  /** The right end of what is seen, in seconds on the coordinator's clock. */
  readonly now: number;
  /** Another number whenever it jumps instead of moving on. */
  readonly jumps: number;
  readonly lanes: ReadonlyArray<ILaneView>;
}

/** A client in the timeline: how to call it, and what it does if nothing is told. */
export interface ILaneClient {
  readonly named: INamed;
  readonly phase: string;
  /** That run now; undefined: not told. */
  readonly cells?: number;
}

/** What the timeline shows, of the history and of the user's choice. */
export class TimelineModel {
  constructor(
    private readonly _history: IHistoryModel,
    private readonly _trans: TranslationBundle
  ) {}

  /** Emitted when {@link view} is another. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

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

  /** Seconds that are seen. */
  get span(): number {
    return this._span;
  }
  set span(seconds: number) {
    this._span = seconds;
    this._from = null;
    this.update();
  }

  /**
   * Look at the history again.
   *
   * @param clients - who has a lane, in this order; without it as before
   */
  update(clients = this._clients): void {
    this._clients = clients;
    const now = this._pausedAt ?? this._history.now;
    this._view = now === null ? null : this._look(now, clients);
    this._changed.emit();
  }

  /** What a client did at a time, as a sentence; empty for who has no lane. */
  describe(id: string, at: number): string {
    const lane = this._lane(id);
    const period = lane?.periods.find(
      ({ from, to }) => from <= at && (to === null || at < to)
    );
    const view = this._view?.lanes.find(lane => lane.id === id);
    if (!view) {
      return '';
    }
    if (!period) {
      return this._trans.__('%1: nothing is known of this time', view.name);
    }
    const now = Math.max(at, this._history.now ?? at);
    return periodText(view.name, period, now, this._trans);
  }

  /** The time of the next (or, backwards, the previous) change in a lane. */
  neighbour(id: string, at: number, isBackwards: boolean): number | null {
    const periods = this._lane(id)?.periods ?? [];
    const index = periods.findIndex(({ to }) => to === null || at < to);
    const period = periods[index + (isBackwards ? -1 : 1)];
    const view = this._view;
    if (!view || !period || index === -1) {
      return null;
    }
    const begin = view.now - view.span;
    const isSeen = period.from < view.now && (period.to ?? view.now) > begin;
    return isSeen ? middle(period, begin, view.now) : null;
  }

  private _look(
    now: number,
    clients: ReadonlyArray<ILaneClient>
  ): ITimelineView {
    const length = this._span * STRIP;
    const begin = now - this._span;
    const last = this._view?.now ?? now;
    if (
      this._from === null ||
      begin < this._from ||
      now > this._from + length ||
      Math.abs(now - last) > JUMP
    ) {
      this._jumps++;
    }
    if (
      this._from === null ||
      begin < this._from ||
      now > this._from + length
    ) {
      this._from = begin;
    }
    const range = {
      from: this._from,
      length,
      resolution: this._span / PIXELS
    };
    const views = clients.flatMap(client => {
      const lane = this._lane(client.named.id);
      return lane ? [this._laneView(lane, client, range, now)] : [];
    });
    this._forget(clients);
    return {
      span: this._span,
      isPaused: this.isPaused,
      from: range.from,
      length,
      now,
      jumps: this._jumps,
      lanes: views
    };
  }

  private _laneView(
    lane: ILane,
    { named, cells = 0 }: ILaneClient,
    range: IRange,
    now: number
  ): ILaneView {
    const key = `${lane.version} ${range.from} ${range.length}`;
    let drawn = this._drawn.get(named.id);
    if (drawn?.key !== key) {
      drawn = { key, drawing: drawLane(lane, range) };
      this._drawn.set(named.id, drawn);
    }
    const running = this.isPaused ? 0 : cells;
    const summary = laneText(lane, now, this._span, running, this._trans);
    const known = drawn.view;
    if (
      known &&
      known.summary === summary &&
      known.name === named.name &&
      known.number === named.number &&
      known.isGone === lane.isGone
    ) {
      return known;
    }
    const { drawing } = drawn;
    drawn.view = { ...named, isGone: lane.isGone, drawing, summary };
    return drawn.view;
  }

  /** The history's lane; who has none has done the same all the time. */
  private _lane(id: string): ILane | null {
    const lane = this._history.lanes.get(id);
    if (lane && lane.periods.length > 0) {
      return lane;
    }
    const phase = this._clients.find(({ named }) => named.id === id)?.phase;
    if (!phase) {
      return null;
    }
    const state = isLaneState(phase) ? phase : 'idle';
    return {
      id,
      periods: [{ state, from: -Infinity, to: null }],
      starts: lane?.starts ?? [],
      ends: lane?.ends ?? [],
      isGone: false,
      // Apart from those of the history, and another one for each state.
      version: (lane?.version ?? 0) + (1 + LANE_STATES.indexOf(state)) / 10
    };
  }

  private _forget(clients: ReadonlyArray<ILaneClient>): void {
    if (this._drawn.size > clients.length) {
      const ids = new Set(clients.map(({ named }) => named.id));
      [...this._drawn.keys()]
        .filter(id => !ids.has(id))
        .forEach(id => this._drawn.delete(id));
    }
  }

  private readonly _drawn = new Map<string, IDrawn>();
  private _clients: ReadonlyArray<ILaneClient> = [];
  private _view: ITimelineView | null = null;
  private _span = 300;
  private _from: number | null = null;
  private _pausedAt: number | null = null;
  private _jumps = 0;
  private _changed = new Signal<this, void>(this);
}

interface IDrawn {
  readonly key: string;
  readonly drawing: IDrawing;
  view?: ILaneView;
}

/** The middle of what is seen of a period. */
function middle({ from, to }: IPeriod, begin: number, end: number): number {
  return (Math.max(from, begin) + Math.min(to ?? end, end)) / 2;
}
