/** History by client, as periods of states, with their texts. */

import type { IHistoryEntry } from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration } from '../base/units';

/** States of a client that a timeline distinguishes. */
export type LaneState =
  'running' | 'held' | 'waiting' | 'draining' | 'suspended' | 'idle';

export const LANE_STATES: ReadonlyArray<LaneState> = [
  'running',
  'held',
  'waiting',
  'draining',
  'suspended',
  'idle'
];

/**
 * A time in which a client had one state, in seconds on the coordinator's
 * clock.
 */
export interface IPeriod {
  readonly state: LaneState;
  readonly from: number;
  /** Null while the period lasts. */
  readonly to: number | null;
}

/** States and cells of one client, the oldest first. */
export interface ILane {
  readonly id: string;
  readonly periods: ReadonlyArray<IPeriod>;
  readonly starts: ReadonlyArray<number>;
  readonly ends: ReadonlyArray<number>;
  readonly isGone: boolean;
}

/**
 * Upper bounds of one lane, because a client may change turns 100 times a
 * second.
 */
const MAX_PERIODS = 2000;
const MAX_MARKS = 2000;
const MAX_LANES = 200;

/** The coordinator's history by client, in bounded memory. */
export class Lanes {
  /** Lanes by client id, in order of appearance. */
  get all(): ReadonlyMap<string, ILane> {
    return this._lanes;
  }

  /** Add entries, which must be later than all entries so far. */
  apply(entries: ReadonlyArray<IHistoryEntry>): void {
    for (const entry of entries) {
      const lane = this._lane(entry.client);
      if (entry.what === 'cell_started') {
        lane.starts.push(entry.at);
      } else if (entry.what === 'cell_ended') {
        lane.ends.push(entry.at);
      } else if (entry.what === 'gone') {
        close(lane, entry.at);
        lane.isGone = true;
      } else if (isLaneState(entry.what)) {
        lane.isGone = false;
        const last = lane.periods[lane.periods.length - 1];
        if (last && last.to === null && last.state === entry.what) {
          continue;
        }
        close(lane, entry.at);
        lane.periods.push({ state: entry.what, from: entry.at, to: null });
      }
      keepLast(lane.periods, MAX_PERIODS);
      keepLast(lane.starts, MAX_MARKS);
      keepLast(lane.ends, MAX_MARKS);
    }
  }

  /**
   * Remove periods that ended before a time, and lanes of clients that left
   * before that time.
   */
  discardBefore(before: number): void {
    for (const lane of this._lanes.values()) {
      dropWhile(lane.periods, ({ to }) => to !== null && to < before);
      dropWhile(lane.starts, at => at < before);
      dropWhile(lane.ends, at => at < before);
      if (lane.isGone && lane.periods.length === 0) {
        this._lanes.delete(lane.id);
      }
    }
  }

  clear(): void {
    this._lanes.clear();
  }

  private _lane(id: string): IGrowingLane {
    const known = this._lanes.get(id);
    if (known) {
      return known;
    }
    if (this._lanes.size >= MAX_LANES) {
      const lanes = [...this._lanes.values()];
      const victim = lanes.find(lane => lane.isGone) ?? lanes[0];
      this._lanes.delete(victim.id);
    }
    const lane: IGrowingLane = {
      id,
      periods: [],
      starts: [],
      ends: [],
      isGone: false
    };
    this._lanes.set(id, lane);
    return lane;
  }

  private readonly _lanes = new Map<string, IGrowingLane>();
}

interface IGrowingLane extends ILane {
  readonly periods: IPeriod[];
  readonly starts: number[];
  readonly ends: number[];
  isGone: boolean;
}

export function isLaneState(what: string): what is LaneState {
  return (LANE_STATES as ReadonlyArray<string>).includes(what);
}

function close({ periods }: IGrowingLane, at: number): void {
  const last = periods[periods.length - 1];
  if (last && last.to === null) {
    periods[periods.length - 1] = { ...last, to: at };
  }
}

function keepLast(list: unknown[], max: number): void {
  // Remove items in batches, because a removal of the first item costs the
  // whole length.
  if (list.length > max * 1.25) {
    list.splice(0, list.length - max);
  }
}

function dropWhile<T>(list: T[], isOld: (item: T) => boolean): void {
  const kept = list.findIndex(item => !isOld(item));
  list.splice(0, kept === -1 ? list.length : kept);
}

/** Return the name of a state, for a list or within a sentence. */
export function stateText(state: LaneState): string {
  switch (state) {
    case 'running':
      return trans.__('running');
    case 'held':
      return trans.__('held');
    case 'waiting':
      return trans.__('waiting');
    case 'draining':
      return trans.__('turn ending');
    case 'suspended':
      return trans.__('suspended');
    case 'idle':
      return trans.__('idle');
  }
}

/**
 * Describe a lane, for screen readers.
 *
 * @param now - end of the visible span, in seconds on the coordinator's clock
 * @param span - length of the visible span in seconds
 * @param cells - cells that run now, whether or not their starts are in the
 *   lane
 */
export function laneText(
  lane: ILane,
  now: number,
  span: number,
  cells: number
): string {
  const begin = now - span;
  const percent = (state: LaneState) =>
    Math.round((100 * secondsOf(lane, state, begin, now)) / span);
  const last = lane.periods[lane.periods.length - 1];
  const turns = lane.periods.filter(
    ({ state, from }, i) =>
      hasTurn(state) &&
      !hasTurn(lane.periods[i - 1]?.state) &&
      from >= begin &&
      from <= now
  ).length;
  const held = percent('held');
  // A cell counts too if it started before the lane, or before the client was
  // known.
  const begun = lane.starts.filter(at => at <= now).length;
  const ended = lane.ends.filter(at => at <= now).length;
  const ran =
    lane.ends.filter(at => at >= begin && at <= now).length +
    Math.max(cells, begun - ended, 0);
  const list = [
    trans.__('running %1 %', percent('running')),
    ...(held > 0 ? [trans.__('held %1 %', held)] : []),
    trans.__('waiting %1 %', percent('waiting')),
    trans._n('%1 turn', '%1 turns', turns),
    trans._n('%1 cell', '%1 cells', ran)
  ].join(', ');
  const duration = formatDuration(span);
  return lane.isGone
    ? trans.__('The client has left. In the last %1: %2.', duration, list)
    : trans.__(
        'Now %1. In the last %2: %3.',
        stateText(last.state),
        duration,
        list
      );
}

/**
 * Describe a period in a sentence.
 *
 * @param now - end of a period that lasts, in seconds on the coordinator's
 * clock
 */
export function periodText(
  name: string,
  { state, from, to }: IPeriod,
  now: number
): string {
  const what = stateText(state);
  if (from === -Infinity) {
    return trans.__('%1: %2 for a long time', name, what);
  }
  const duration = formatDuration((to ?? now) - from);
  const since = clockTime(now - from);
  return to === null
    ? trans.__('%1: %2 since %3 (%4)', name, what, since, duration)
    : trans.__('%1: %2 at %3 for %4', name, what, since, duration);
}

/**
 * Return whether a state is part of a turn. A hold continues a turn between
 * cells.
 */
function hasTurn(state: LaneState | undefined): boolean {
  return state === 'running' || state === 'held';
}

/** Return the user's time of day `ago` seconds before now. */
function clockTime(ago: number): string {
  return new Date(Date.now() - ago * 1000).toLocaleTimeString();
}

function secondsOf(
  lane: ILane,
  state: LaneState,
  begin: number,
  end: number
): number {
  let sum = 0;
  for (const period of lane.periods) {
    if (period.state === state) {
      const from = Math.max(period.from, begin);
      sum += Math.max(0, Math.min(period.to ?? end, end) - from);
    }
  }
  return sum;
}
