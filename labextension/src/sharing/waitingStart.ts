/** Starts of kernels that wait for a node with room, as texts. */

import type { IStart } from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration } from '../base/units';
import { remainingSeconds } from './clientState';

/** Start of a kernel that waits for a node with room. */
export interface IStartView {
  readonly kind: 'starting';
  readonly start: IStart;
  /** Seconds until a node may have room; null if unknown. */
  readonly left: number | null;
}

/** @param age - seconds since the snapshot with the start arrived */
export function startView(start: IStart, age: number): IStartView {
  const left = remainingSeconds(start.expected_wait, age);
  return { kind: 'starting', start, left };
}

/** Return the place in the queue, such as "#2, about 3 min". */
export function placeText({ start, left }: IStartView): string {
  const place = `#${start.position}`;
  if (!left) {
    return place;
  }
  const step = left > 60 ? 60 : 1;
  return trans.__(
    '%1, about %2',
    place,
    formatDuration(Math.ceil(left / step) * step)
  );
}
