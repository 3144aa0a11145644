import { trans } from '../base/trans';
import { formatDuration } from '../base/units';
import { displayName } from '../sharing/clientLabels';
import type { IClientView } from '../sharing/sharingModel';

/** What is read below a cell while its client waits for a turn. */
export function waitText(view: IClientView): string {
  const { client, expectedWait, isLate } = view;
  const head = plainText(client.queue_position);
  const text = isLate
    ? trans.__('%1, longer than expected', head)
    : expectedWait
      ? trans.__('%1, about %2', head, formatDuration(expectedWait))
      : head;
  const runners = runnersText(view);
  return runners ? trans.__('%1 (%2)', text, runners) : text;
}

/** Seconds; for the next client it is no longer than the turns that run. */
export function remainingWait(view: IClientView): number | null {
  const { client, expectedWait, others } = view;
  return expectedWait || client.queue_position !== 1
    ? expectedWait
    : Math.max(0, ...others.map(({ secondsLeft }) => secondsLeft ?? 0));
}

/** The same without times, for screen readers. */
export function plainText(position: number | null): string {
  return position === null
    ? trans.__('Waiting for the GPU')
    : trans.__('Waiting for the GPU: #%1', position);
}

/** The times of which something is read, in seconds. */
export function shownTimes({ expectedWait, others }: IClientView): number[] {
  return [expectedWait, ...others.map(({ secondsLeft }) => secondsLeft)].map(
    seconds => seconds ?? 0
  );
}

/** The clients that have the GPU meanwhile; empty: none. */
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
  // That is until the deadline; often a turn ends before.
  return isLate || (expectedWait && expectedWait + 1 < secondsLeft)
    ? trans.__('%1, up to %2 left', text, left)
    : trans.__('%1, %2 left', text, left);
}
