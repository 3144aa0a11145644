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
  const result: IBlock[] = [];
  let first = 0;
  for (let column = 0; column < COLUMNS; column++) {
    const left = begin + column * width;
    const right = left + width;
    const spent: Partial<Record<LaneState, number>> = {};
    while (first < periods.length && (periods[first].to ?? right) <= left) {
      first++;
    }
    for (let i = first; i < periods.length && periods[i].from < right; i++) {
      const { state, from, to } = periods[i];
      const seconds = Math.min(to ?? right, right) - Math.max(from, left);
      spent[state] = (spent[state] ?? 0) + seconds;
    }
    const last = result[result.length - 1];
    const state = dominant(spent);
    if (state && last?.state === state && last.to === column) {
      last.to++;
    } else if (state) {
      result.push({ state, from: column, to: column + 1 });
    }
  }
  return result;
}

function dominant(
  spent: Readonly<Partial<Record<LaneState, number>>>
): LaneState | undefined {
  const [longest] = LANE_STATES.filter(state => state in spent).sort(
    (a, b) => rank(b) - rank(a)
  );
  return longest;

  function rank(state: LaneState): number {
    return state === 'idle' ? -1 : spent[state]!;
  }
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
