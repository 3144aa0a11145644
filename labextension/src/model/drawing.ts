import type { ILane, LaneState } from './lanes';

/** The height of a lane in pixels, and in the units of its paths. */
export const LANE_HEIGHT = 20;

/** Where each state is drawn: shapes differ, so that colour is not the only sign. */
const SHAPES: Readonly<Record<LaneState, ReadonlyArray<IShape>>> = {
  running: [{ top: 3, height: 14 }],
  held: [
    { top: 3, height: 3 },
    { top: 8.5, height: 3 },
    { top: 14, height: 3 }
  ],
  draining: [
    { top: 3, height: 5 },
    { top: 12, height: 5 }
  ],
  waiting: [{ top: 10, height: 7 }],
  suspended: [
    { top: 7, height: 2 },
    { top: 11, height: 2 }
  ],
  idle: [{ top: 9.5, height: 1 }]
};

interface IShape {
  readonly top: number;
  readonly height: number;
}

/** What of the past is drawn, in seconds on the coordinator's clock. */
export interface IRange {
  readonly from: number;
  readonly length: number;
  /** Shorter periods than this cannot be told apart on the screen. */
  readonly resolution: number;
}

/** SVG path data; x in seconds since the range's begin, y in pixels. */
export interface IDrawing {
  readonly paths: ReadonlyArray<readonly [LaneState, string]>;
  readonly starts: string;
  readonly ends: string;
}

interface IBlock {
  readonly state: LaneState;
  readonly from: number;
  to: number;
}

/** One path for each state, whatever number of periods there are. */
export function drawLane(lane: ILane, range: IRange): IDrawing {
  const parts = new Map<LaneState, string>();
  for (const { state, from, to } of blocks(lane, range)) {
    const x = round(from - range.from);
    const width = round(to - from);
    let path = parts.get(state) ?? '';
    for (const { top, height } of SHAPES[state]) {
      path += `M${x} ${top}h${width}v${height}h${-width}z`;
    }
    parts.set(state, path);
  }
  return {
    paths: [...parts],
    starts: marks(lane.starts, range, 6),
    ends: marks(lane.ends, range, 3)
  };
}

/**
 * The periods within a range, those too short to be seen merged: such a stretch
 * shows what most of it was.
 */
export function blocks(lane: ILane, range: IRange): IBlock[] {
  const { resolution } = range;
  const end = range.from + range.length;
  const result: IBlock[] = [];
  let crowd: Crowd | null = null;

  const add = (state: LaneState, from: number, to: number) => {
    const last = result[result.length - 1];
    if (last && last.state === state && from - last.to < resolution) {
      last.to = to;
    } else {
      result.push({ state, from, to });
    }
  };
  const flush = () => {
    if (crowd) {
      const to = Math.max(crowd.to, crowd.from + resolution);
      add(crowd.state(), crowd.from, to);
      crowd = null;
    }
  };

  for (const period of lane.periods) {
    const from = Math.max(period.from, range.from);
    const to = Math.min(period.to ?? end, end);
    if (to < from || from >= end) {
      continue;
    }
    if (crowd && from - crowd.to >= resolution) {
      flush();
    }
    if (to - from >= resolution) {
      flush();
      add(period.state, from, to);
      continue;
    }
    crowd ??= new Crowd(from);
    crowd.add(period.state, from, to);
    if (crowd.to - crowd.from >= resolution) {
      flush();
    }
  }
  flush();
  return result;
}

/** Periods that share one pixel. */
class Crowd {
  constructor(readonly from: number) {
    this.to = from;
  }

  to: number;

  add(state: LaneState, from: number, to: number): void {
    this.to = to;
    this._seconds.set(state, (this._seconds.get(state) ?? 0) + (to - from));
  }

  /** What most of it was. */
  state(): LaneState {
    return [...this._seconds].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
  }

  private readonly _seconds = new Map<LaneState, number>();
}

/** Small strokes at the bottom; of those on one pixel only the first. */
function marks(
  times: ReadonlyArray<number>,
  { from, length, resolution }: IRange,
  height: number
): string {
  let path = '';
  let last = -Infinity;
  for (const at of times) {
    if (at >= from && at <= from + length && at - last >= resolution) {
      path += `M${round(at - from)} ${LANE_HEIGHT}v${-height}`;
      last = at;
    }
  }
  return path;
}

function round(value: number): number {
  return Math.round(value * 100) / 100;
}
