/** Model that requests the coordinator's history while a view watches. */

import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { clock } from '../base/browser';
import { Disposable } from '../base/disposable';
import type { IHistory, IStatus } from '../base/protocol';
import type { IServerAccess } from '../server/api';
import type { SharingModel } from '../sharing/sharingModel';
import { Lanes, type ILane } from './lanes';

/** Minimum from the start of one request to the start of the next request. */
const CHANGE_INTERVAL_MS = 1000;
/**
 * Interval while devices are busy, because utilisation changes without a new
 * snapshot.
 */
const BUSY_INTERVAL_MS = 2000;
const FAILURE_INTERVAL_MS = 10000;

/**
 * Upper bound of answers in a row. The coordinator's history fits in fewer
 * answers.
 */
const MAX_ANSWERS = 50;

/** Longer than the coordinator's history, so that a pause loses no entries. */
const KEPT_SECONDS = 1200;

/**
 * History of the last minutes.
 *
 * The model sends a request when the state of sharing has changed, at most once
 * a second, and only while a view watches.
 */
export class HistoryModel extends Disposable {
  constructor(
    private readonly _options: IServerAccess & {
      readonly sharing: SharingModel;
    }
  ) {
    super();
    _options.sharing.changed.connect(this._onSharing, this);
    _options.visibility.changed.connect(this._onVisibility, this);
  }

  /** Emitted when one of the properties below changes. */
  readonly changed = new Signal<this, void>(this);

  /** Lanes by client id. */
  get lanes(): ReadonlyMap<string, ILane> {
    return this._lanes.all;
  }

  /** Present seconds on the coordinator's clock; null if unknown. */
  get now(): number | null {
    return this._offset === null ? null : clock() + this._offset;
  }

  /** Last known utilisation by UUID; null if unknown. */
  get utilisation(): Readonly<Record<string, number | null>> {
    return this._utilisation;
  }

  /** Keep the model up to date until the result is disposed. */
  watch(): IDisposable {
    this._watchers++;
    this._onVisibility();
    return new DisposableDelegate(() => {
      this._watchers--;
      this._onVisibility();
    });
  }

  dispose(): void {
    clearTimeout(this._timer);
    super.dispose();
  }

  private get _isActive(): boolean {
    return (
      !this.isDisposed && this._watchers > 0 && !this._options.visibility.hidden
    );
  }

  private _onVisibility(): void {
    if (this._isActive) {
      this._ask(CHANGE_INTERVAL_MS);
    } else {
      clearTimeout(this._timer);
      this._due = Infinity;
    }
  }

  private _onSharing(): void {
    const { status, unavailable } = this._options.sharing;
    if (unavailable) {
      this._notBefore = -Infinity;
    } else if (status !== this._seen) {
      // Other changes of the model, such as a new client of a kernel, add no
      // entries.
      this._seen = status;
      this._ask(CHANGE_INTERVAL_MS);
    }
  }

  /**
   * Send a request `delay` milliseconds after the start of the last request.
   */
  private _ask(delay: number): void {
    if (
      !this._isActive ||
      this._options.sharing.unavailable ||
      !this._options.sharing.status?.config
    ) {
      return;
    }
    const earliest = Math.max(this._asked + delay, this._notBefore);
    if (earliest >= this._due) {
      return;
    }
    this._due = earliest;
    clearTimeout(this._timer);
    this._timer = setTimeout(
      () => {
        this._due = Infinity;
        void this._update();
      },
      Math.max(0, earliest - clock() * 1000)
    );
  }

  private async _update(): Promise<void> {
    if (this._isAsking) {
      this._ask(CHANGE_INTERVAL_MS);
      return;
    }
    this._isAsking = true;
    this._asked = clock() * 1000;
    try {
      for (let i = 0; i < MAX_ANSWERS; i++) {
        const answer = await this._options.api.history(this._next);
        if (this.isDisposed || !this._take(answer)) {
          break;
        }
      }
    } catch {
      // A missing history deserves no error message, because the state is still
      // shown.
      this._notBefore = clock() * 1000 + FAILURE_INTERVAL_MS;
    } finally {
      this._isAsking = false;
    }
    if (this._isBusy()) {
      this._ask(BUSY_INTERVAL_MS);
    }
  }

  /** Take an answer. Return whether the next request should follow at once. */
  private _take(answer: IHistory): boolean {
    if (answer.run !== this._run) {
      this._lanes.clear();
      this._offset = null;
      this._run = answer.run;
      if (this._next !== 0) {
        this._next = 0;
        return true; // The answer began at a number that an earlier coordinator had counted.
      }
    }
    this._lanes.apply(answer.entries);
    this._lanes.discardBefore(answer.now - KEPT_SECONDS);
    this._next = answer.next;
    this._utilisation = answer.utilisation;
    this._setClock(answer.now);
    this.changed.emit();
    return answer.more;
  }

  /** Keep the offset of the fastest answer, which is the most exact one. */
  private _setClock(now: number): void {
    const offset = now - clock();
    const drift = this._offset === null ? Infinity : this._offset - offset;
    if (drift < 0 || drift > 1) {
      this._offset = offset;
    }
  }

  private _isBusy(): boolean {
    const hasGrants = (status: IStatus | null) =>
      status?.devices.some(device => device.grants.length > 0);
    return (
      hasGrants(this._options.sharing.status) ||
      Object.values(this._utilisation).some(fraction => (fraction ?? 0) > 0)
    );
  }

  private readonly _lanes = new Lanes();
  private _utilisation: Readonly<Record<string, number | null>> = {};
  private _run = '';
  private _next = 0;
  private _offset: number | null = null;
  private _seen: IStatus | null = null;
  private _watchers = 0;
  private _asked = -Infinity;
  private _notBefore = -Infinity;
  private _due = Infinity;
  private _isAsking = false;
  private _timer?: ReturnType<typeof setTimeout>;
}
