/**
 * Notifications about own kernels that the idle policy has evicted or
 * suspended.
 */

import { Signal } from '@lumino/signaling';

import { Disposable } from '../base/disposable';
import type { IClient } from '../base/protocol';
import { trans } from '../base/trans';
import { formatElapsed } from '../base/units';
import { isProgram, displayName } from '../sharing/clientLabels';
import type { SharingModel } from '../sharing/sharingModel';

/** Stages of a client that is not used. */
enum Stage {
  Present,
  Evicted,
  Suspended
}

/**
 * Evictions and suspensions of own kernels by the idle policy.
 *
 * Events before the load of the page are skipped, because the views show the
 * state that they led to.
 */
export class IdleNotifications extends Disposable {
  constructor(private readonly _sharing: SharingModel) {
    super();
    _sharing.changed.connect(this._update, this);
  }

  /**
   * Emitted when the idle policy evicts a client, and when it suspends a
   * client.
   */
  readonly raised = new Signal<this, IClient>(this);

  /**
   * Emitted with the id of such a client when the client is used again or has
   * left.
   */
  readonly cleared = new Signal<this, string>(this);

  private _update(): void {
    const { unavailable, status } = this._sharing;
    if (unavailable || !status) {
      return; // The states of clients are unknown without a coordinator.
    }
    const own = status.clients.filter(one => one.own && !isProgram(one));
    const present = new Set(own.map(({ id }) => id));
    for (const id of [...this._stages.keys()]) {
      if (!present.has(id)) {
        this._end(id);
        this._stages.delete(id);
      }
    }
    own.forEach(client => this._follow(client));
  }

  private _follow(client: IClient): void {
    const { id } = client;
    const stage = stageOf(client);
    const last = this._stages.get(id);
    if (last !== undefined && stage > last) {
      this._reported.add(id);
      this.raised.emit(client);
    } else if (stage === Stage.Present) {
      this._end(id);
    }
    // A restarted coordinator may need a while to learn the stage from the
    // client's processes.
    const isUsed = client.idle_seconds === null;
    const isLess = stage < (last ?? stage);
    this._stages.set(id, isLess && !isUsed ? last! : stage);
  }

  private _end(id: string): void {
    if (this._reported.delete(id)) {
      this.cleared.emit(id);
    }
  }

  private readonly _stages = new Map<string, Stage>();
  private readonly _reported = new Set<string>();
}

/**
 * Return what the idle policy has done to a client, with advice for the
 * client's user.
 */
export function notificationText(client: IClient): string {
  const name = displayName(client);
  const idle = formatElapsed(client.idle_seconds ?? 0);
  return stageOf(client) === Stage.Suspended
    ? trans.__(
        '%1 has not been used for %2 and is now suspended, without memory on the GPU. No data is lost. Run a cell to resume it.',
        name,
        idle
      )
    : trans.__(
        '%1 has not been used for %2, so its memory has moved off the GPU. No data is lost. Run a cell to move the memory back.',
        name,
        idle
      );
}

function stageOf(client: IClient): Stage {
  if (client.suspended_by_policy) {
    return Stage.Suspended;
  }
  return client.evicted_by_policy ? Stage.Evicted : Stage.Present;
}
