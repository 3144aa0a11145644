import type { TranslationBundle } from '@jupyterlab/translation';

import { formatDuration } from './units';
import type { ILane, IPeriod, LaneState } from './lanes';

/** What a state is called, in a list and within a sentence. */
export function stateText(state: LaneState, trans: TranslationBundle): string {
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
 * What a lane shows, for who cannot see it.
 *
 * @param now - seconds on the coordinator's clock; what is told ends there
 * @param span - seconds that are told
 * @param cells - that run now, also those whose begin is not in the lane
 */
export function laneText(
  lane: ILane,
  now: number,
  span: number,
  cells: number,
  trans: TranslationBundle
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
  // One that began before, or before the client was known, counts as well.
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
  const duration = formatDuration(span, trans);
  return lane.isGone
    ? trans.__('It has left. In the last %1: %2.', duration, list)
    : trans.__(
        'Now %1. In the last %2: %3.',
        stateText(last.state, trans),
        duration,
        list
      );
}

/**
 * What a client did in a period, as a sentence.
 *
 * @param now - seconds on the coordinator's clock, to which it lasts if it lasts
 */
export function periodText(
  name: string,
  { state, from, to }: IPeriod,
  now: number,
  trans: TranslationBundle
): string {
  const what = stateText(state, trans);
  if (from === -Infinity) {
    return trans.__('%1: %2, for long', name, what);
  }
  const duration = formatDuration((to ?? now) - from, trans);
  const since = clockTime(now - from);
  return to === null
    ? trans.__('%1: %2 since %3 (%4)', name, what, since, duration)
    : trans.__('%1: %2 at %3 for %4', name, what, since, duration);
}

/** A turn goes on while it is held between cells. */
function hasTurn(state: LaneState | undefined): boolean {
  return state === 'running' || state === 'held';
}

/** The user's time of day so many seconds ago. */
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
