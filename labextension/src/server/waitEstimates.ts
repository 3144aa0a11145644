/** Filter of expected waits, which drops estimates that keep growing. */

import type { IStatus } from '../base/protocol';

/**
 * Excess over the first estimate that is still accepted: this fraction, or at
 * least these seconds.
 */
const SLACK_FRACTION = 0.25;
const MIN_SLACK_SECONDS = 2;

interface IWait {
  readonly since: number;
  /** First estimate of the wait's end; null without an estimate. */
  readonly end: number | null;
}

/**
 * First estimate of each wait, to drop estimates that keep growing.
 *
 * The estimate of a wait behind an endless cell moves on as time passes, so the
 * estimate is useless.
 */
export class WaitEstimates {
  /**
   * Return a status without the estimates that the waits have missed.
   *
   * @param now - seconds on a monotonic clock
   */
  withoutMissed(status: IStatus, now: number): IStatus {
    const waits = new Map<string, IWait>();
    this._late.clear();
    for (const { id, phase, expected_wait: wait } of status.clients) {
      if (phase !== 'waiting') {
        continue;
      }
      const end = wait === null ? null : now + wait;
      const known = this._waits.get(id);
      const first = {
        since: known?.since ?? now,
        end: known?.end ?? end
      };
      waits.set(id, first);
      if (end !== null && end > latest(first)) {
        this._late.add(id);
      }
    }
    this._waits = waits;
    return this._late.size === 0
      ? status
      : {
          ...status,
          clients: status.clients.map(client =>
            this._late.has(client.id)
              ? { ...client, expected_wait: null }
              : client
          )
        };
  }

  isLate(id: string): boolean {
    return this._late.has(id);
  }

  private readonly _late = new Set<string>();
  private _waits: ReadonlyMap<string, IWait> = new Map();
}

/** Return the latest end that agrees with the first estimate. */
function latest({ since, end }: IWait): number {
  return end === null
    ? Infinity
    : end + Math.max(MIN_SLACK_SECONDS, SLACK_FRACTION * (end - since));
}
