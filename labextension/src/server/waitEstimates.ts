import type { IStatus } from '../base/protocol';

/** By this part of it, or these seconds, a wait may be longer than first expected. */
const SLACK_FRACTION = 0.25;
const MIN_SLACK_SECONDS = 2;

interface IWait {
  readonly since: number;
  /** The end that was expected first; null: none was. */
  readonly end: number | null;
}

/**
 * Keeps the first expectation of each wait. Behind a cell that goes on and on the
 * expected end moves away as time passes: such an expectation is left out.
 */
export class WaitEstimates {
  /**
   * A status without the expectations that have not been kept.
   *
   * @param now - seconds that only go forward
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

/** The time until which a wait is about as long as first expected. */
function latest({ since, end }: IWait): number {
  return end === null
    ? Infinity
    : end + Math.max(MIN_SLACK_SECONDS, SLACK_FRACTION * (end - since));
}
