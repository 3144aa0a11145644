/** Texts and times of a wait, for the text below a cell. */

import { trans } from '../base/trans';
import { formatDuration } from '../base/units';
import { displayName } from '../sharing/clientLabels';
import type { IClientView } from '../sharing/sharingModel';

/** Return the text below a cell whose client waits for a turn. */
export function waitText(view: IClientView): string {
  const { client, expectedWait, isLate } = view;
  if (client.wait_reason) {
    return trans.__('Waiting for the GPU: %1', client.wait_reason);
  }
  const head = plainText(client.queue_position);
  const text = isLate
    ? trans.__('%1, longer than expected', head)
    : expectedWait
      ? trans.__('%1, about %2', head, formatDuration(expectedWait))
      : head;
  const runners = runnersText(view);
  return runners ? trans.__('%1 (%2)', text, runners) : text;
}

/**
 * Return the remaining seconds, for the next client at most the seconds of the
 * present turns.
 */
export function remainingWait(view: IClientView): number | null {
  const { client, expectedWait, others } = view;
  return expectedWait || client.queue_position !== 1
    ? expectedWait
    : Math.max(0, ...others.map(({ secondsLeft }) => secondsLeft ?? 0));
}

/** Return the text without times, for screen readers. */
export function plainText(position: number | null): string {
  return position === null
    ? trans.__('Waiting for the GPU')
    : trans.__('Waiting for the GPU: #%1', position);
}

/** Return the seconds of all times in the text. */
export function shownTimes({ expectedWait, others }: IClientView): number[] {
  return [expectedWait, ...others.map(({ secondsLeft }) => secondsLeft)].map(
    seconds => seconds ?? 0
  );
}

/** Return the clients that have turns; empty without such clients. */
function runnersText(view: IClientView): string {
  const { expectedWait, isLate, others } = view;
  if (others.length === 0) {
    return '';
  }
  const names = others
    .map(({ client }) =>
      client ? displayName(client) : trans.__('another client')
    )
    .join(', ');
  const isHeld = others.every(other => other.isHeld);
  if (others.length > 1) {
    return isHeld
      ? trans.__('%1 hold the GPU', names)
      : trans.__('%1 are running', names);
  }
  const text = isHeld
    ? trans.__('%1 holds the GPU', names)
    : trans.__('%1 is running', names);
  const [{ secondsLeft }] = others;
  if (!secondsLeft) {
    return text;
  }
  const left = formatDuration(secondsLeft);
  // The deadline is an upper bound, because a turn may end early.
  return isLate || (expectedWait && expectedWait + 1 < secondsLeft)
    ? trans.__('%1, up to %2 left', text, left)
    : trans.__('%1, %2 left', text, left);
}
