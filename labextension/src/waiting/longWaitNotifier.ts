/** Notifier of the end of a long wait that the user has not seen. */

import { Signal } from '@lumino/signaling';

import { clock } from '../base/browser';
import { Disposable } from '../base/disposable';
import type { IClient } from '../base/protocol';
import type { WaitModel } from './waitModel';

/** Ends of one document's long waits that the user has not seen. */
export class LongWaitNotifier<T> extends Disposable {
  constructor(private readonly _options: LongWaitNotifier.IOptions<T>) {
    super();
    _options.sharing.changed.connect(this._check, this);
    _options.runningCells.changed.connect(this._onRunningCells, this);
    _options.visibility.changed.connect(this._onVisibility, this);
  }

  /**
   * Emitted when a long wait has ended with a turn, once for each run of a
   * cell.
   */
  readonly ended = new Signal<this, LongWaitNotifier.IEnd>(this);

  private _check(): void {
    const { current, runningCells, sharing } = this._options;
    const view = current.kernelId ? sharing.view(current.kernelId) : null;
    if (view?.kind !== 'client') {
      return; // The wait may continue while the state is unknown.
    }
    const { client } = view;
    this._ids = client.cell_ids;
    if (client.phase === 'waiting') {
      const cell = this._wait === null ? runningCells.first(this._ids) : null;
      if (cell !== null) {
        this._wait = { at: clock(), client, cell, wasHidden: false };
      }
    } else if (this._wait !== null) {
      const wait = this._wait;
      this._wait = null;
      this._onEnd(wait, client);
    }
  }

  private _onEnd(wait: IWait<T>, client: IClient): void {
    const minSeconds = this._options.minSeconds();
    // While the page was hidden, only the coordinator has measured the wait.
    const counted = client.wait_seconds - wait.client.wait_seconds;
    const seconds = counted > 0 ? counted : clock() - wait.at;
    // An interrupt, a suspension or a restart of the kernel ends a wait as well.
    const hasHadTurn = client.turn_count > wait.client.turn_count;
    if (
      minSeconds > 0 &&
      seconds >= minSeconds &&
      hasHadTurn &&
      (wait.wasHidden || !this._options.isInSight()) &&
      wait.cell !== this._reported
    ) {
      this._reported = wait.cell;
      this.ended.emit({ client, seconds });
    }
  }

  /** Allow a further report for a cell that runs again. */
  private _onRunningCells(): void {
    if (
      this._reported !== null &&
      this._options.runningCells.first(this._ids) !== this._reported
    ) {
      this._reported = null;
    }
  }

  private _onVisibility(): void {
    if (this._wait && this._options.visibility.hidden) {
      this._wait.wasHidden = true;
    }
  }

  private _wait: IWait<T> | null = null;
  private _reported: T | null = null;
  private _ids: ReadonlyArray<string> = [];
}

export namespace LongWaitNotifier {
  export interface IOptions<T> extends WaitModel.IOptions<T> {
    /**
     * Return the minimum length of a long wait in seconds; 0 for no reports.
     */
    minSeconds: () => number;
    isInSight: () => boolean;
  }

  export interface IEnd {
    /** Present state of the client. */
    readonly client: IClient;
    readonly seconds: number;
  }
}

interface IWait<T> {
  readonly at: number;
  readonly client: IClient;
  readonly cell: T;
  /** True if the page was hidden during a part of the wait. */
  wasHidden: boolean;
}
