/** SVG paths of a client's lane in the timeline. */

import { LANE_STATES, type IPeriod, type LaneState } from '../../history/lanes';

/** Height of a lane in pixels, and in the units of its paths. */
export const LANE_HEIGHT = 20;

/** Width of a lane in the units of its paths, about as many as pixels. */
export const COLUMNS = 600;

/**
 * Top and height of each state's shapes, which differ because colour must not
 * be the only sign.
 */
const SHAPES: Readonly<Record<LaneState, ReadonlyArray<[number, number]>>> = {
  running: [[3, 14]],
  held: [
    [3, 3],
    [8.5, 3],
    [14, 3]
  ],
  draining: [
    [3, 5],
    [12, 5]
  ],
  waiting: [[10, 7]],
  suspended: [
    [7, 2],
    [11, 2]
  ],
  idle: [[9.5, 1]]
};

export interface IBlock {
  readonly state: LaneState;
  readonly from: number;
  to: number;
}

/**
 * Return ranges of columns with the same state.
 *
 * A column has the state that took most of its time. Idle counts only without
 * another state.
 *
 * @param begin - seconds on the coordinator's clock, as `end`
 */
export function blockRanges(
  periods: ReadonlyArray<IPeriod>,
  begin: number,
  end: number
): IBlock[] {
  const width = (end - begin) / COLUMNS;
  const columnOf = (at: number) =>
    Math.min(Math.floor((at - begin) / width), COLUMNS);
  const result: IBlock[] = [];
  let first = 0;
  let next: number;
  for (let column = 0; column < COLUMNS; column = next) {
    next = column + 1;
    const left = begin + column * width;
    const right = left + width;
    while (first < periods.length && endOf(periods[first]) <= left) {
      first++;
    }
    if (first === periods.length) {
      break;
    }
    const { state, from } = periods[first];
    const to = endOf(periods[first]);
    if (from >= right) {
      next = Math.max(columnOf(from), next);
    } else if (from <= left && to >= right) {
      next = Math.max(columnOf(to), next);
      append(result, state, column, next);
    } else {
      append(result, longest(periods, first, left, right), column, next);
    }
  }
  return result;
}

function endOf({ to }: IPeriod): number {
  return to ?? Infinity;
}

function append(
  ranges: IBlock[],
  state: LaneState | undefined,
  from: number,
  to: number
): void {
  const last = ranges[ranges.length - 1];
  if (state && last?.state === state && last.to === from) {
    last.to = to;
  } else if (state) {
    ranges.push({ state, from, to });
  }
}

/** Return the state of a column from the period at index `first` on. */
function longest(
  periods: ReadonlyArray<IPeriod>,
  first: number,
  left: number,
  right: number
): LaneState | undefined {
  const seconds: Partial<Record<LaneState, number>> = {};
  for (let i = first; i < periods.length && periods[i].from < right; i++) {
    const { state, from } = periods[i];
    const spent = Math.min(endOf(periods[i]), right) - Math.max(from, left);
    seconds[state] = (seconds[state] ?? 0) + spent;
  }
  let result: LaneState | undefined;
  let most = -Infinity;
  for (const state of LANE_STATES) {
    const spent = seconds[state];
    if (spent === undefined) {
      continue;
    }
    const rank = state === 'idle' ? -1 : spent;
    if (rank > most) {
      result = state;
      most = rank;
    }
  }
  return result;
}

/** Return SVG path data of each state, with one path for all ranges. */
export function lanePaths(
  ranges: ReadonlyArray<IBlock>
): ReadonlyArray<readonly [LaneState, string]> {
  const all = new Map<LaneState, string>();
  for (const { state, from, to } of ranges) {
    const shapes = SHAPES[state].map(
      ([top, height]) => `M${from} ${top}h${to - from}v${height}h${from - to}z`
    );
    all.set(state, (all.get(state) ?? '') + shapes.join(''));
  }
  return [...all];
}

/**
 * Return SVG path data of small strokes at the bottom, at most one in each
 * column.
 */
export function markPath(
  times: ReadonlyArray<number>,
  begin: number,
  end: number,
  height: number
): string {
  const columns = times
    .filter(at => at >= begin && at <= end)
    .map(at => Math.floor(((at - begin) / (end - begin)) * COLUMNS));
  return [...new Set(columns)]
    .map(column => `M${column} ${LANE_HEIGHT}v${-height}`)
    .join('');
}
