/** Model of the text below a cell that waits for the GPU. */

import { Signal, type ISignal } from '@lumino/signaling';

import { clock } from '../base/browser';
import { Toggleable } from '../base/disposable';
import { trans } from '../base/trans';
import { untilNextSecond } from '../base/units';
import type {
  IClientView,
  IKernelSources,
  KernelView
} from '../sharing/sharingModel';
import { plainText, remainingWait, shownTimes, waitText } from './waitText';

/** Minimum length of a visible wait, because shorter waits would flicker. */
const MIN_SHOWN_WAIT_SECONDS = 1;

/** Step back of the progress that is ignored, as a fraction of the bar. */
const MAX_STEP_BACK = 0.1;

/** Cells of a document that were sent to the document's kernel. */
export interface IRunningCells<T> {
  /**
   * Return the first unfinished cell; null without a running cell.
   *
   * @param ids - ids of running cells that the kernel reports
   */
  first(ids: ReadonlyArray<string>): T | null;
  /** Emitted when the first cell may have changed. */
  readonly changed: ISignal<IRunningCells<T>, void>;
}

/** Model of the text below a cell that waits for the GPU. */
export class WaitModel<T> extends Toggleable {
  constructor(private readonly _options: WaitModel.IOptions<T>) {
    super();
    const { sharing, current, runningCells, visibility } = _options;
    sharing.changed.connect(this.refresh, this);
    current.changed.connect(this.refresh, this);
    runningCells.changed.connect(this.refresh, this);
    visibility.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Emitted when {@link state} changes. */
  readonly changed = new Signal<this, void>(this);

  /** The wait and its cell; null without a visible wait. */
  get state(): WaitModel.IState<T> | null {
    return this._state;
  }

  dispose(): void {
    clearTimeout(this._timer);
    super.dispose();
  }

  protected refresh(): void {
    if (this.isDisposed || this._options.visibility.hidden) {
      clearTimeout(this._timer);
      return; // The visibility signal causes an update when the page is visible again.
    }
    clearTimeout(this._timer);
    const view = this._view();
    if (view?.kind === 'client') {
      this._ids = view.client.cell_ids;
    }
    const cell = view && this._options.runningCells.first(this._ids);
    if (
      !view ||
      !cell ||
      (view.kind === 'unavailable' && cell !== this._cell)
    ) {
      this._cell = null;
      this._show(null);
      return;
    }
    if (cell !== this._cell) {
      this._cell = cell;
      this._since = clock();
      this._furthest = 0;
    }
    const waited = clock() - this._since;
    if (view.kind === 'unavailable') {
      this._show(this._describeUnavailable(cell));
      return;
    }
    this._client = view.client.id;
    this._show(
      waited < MIN_SHOWN_WAIT_SECONDS
        ? null
        : this._describe(view, cell, waited)
    );
    this._timer = setTimeout(
      () => this.refresh(),
      1000 *
        (waited < MIN_SHOWN_WAIT_SECONDS
          ? MIN_SHOWN_WAIT_SECONDS - waited
          : Math.min(...shownTimes(view).map(untilNextSecond)))
    );
  }

  /**
   * Return the view of the kernel, if its GPU calls wait or their state is
   * unknown.
   */
  private _view(): Extract<
    KernelView,
    { kind: 'client' | 'unavailable' }
  > | null {
    const { kernelId } = this._options.current;
    const view =
      this.isEnabled && kernelId ? this._options.sharing.view(kernelId) : null;
    return view?.kind === 'unavailable' ||
      (view?.kind === 'client' &&
        (view.client.phase === 'waiting' || view.client.suspended))
      ? view
      : null;
  }

  /**
   * Describe a wait without a coordinator, during which the cell may get a
   * turn.
   */
  private _describeUnavailable(cell: T): WaitModel.IState<T> {
    const text = trans.__(
      'This cell was waiting for the GPU when the sharing service became unavailable. GPU turns continue.'
    );
    const client = this._client;
    return { cell, client, isSuspended: false, text, plain: text };
  }

  private _describe(
    view: IClientView,
    cell: T,
    waited: number
  ): WaitModel.IState<T> {
    const { client } = view;
    const remaining = remainingWait(view);
    if (client.suspended) {
      const text = trans.__(
        'Suspended: GPU calls wait until you resume the kernel.'
      );
      return { cell, client: client.id, isSuspended: true, text, plain: text };
    }
    return {
      cell,
      client: client.id,
      isSuspended: false,
      text: waitText(view),
      plain: plainText(client.queue_position),
      fraction: this._fraction(waited, remaining)
    };
  }

  /**
   * Return the progress, which never goes back; undefined for a larger step
   * back.
   */
  private _fraction(
    waited: number,
    remaining: number | null
  ): number | undefined {
    // An estimate that has passed gives no progress.
    const fraction = remaining ? waited / (waited + remaining) : 0;
    if (!remaining || fraction < this._furthest - MAX_STEP_BACK) {
      return undefined;
    }
    this._furthest = Math.max(this._furthest, fraction);
    return this._furthest;
  }

  private _show(state: WaitModel.IState<T> | null): void {
    if (state === null && this._state === null) {
      return;
    }
    this._state = state;
    this.changed.emit();
  }

  private _state: WaitModel.IState<T> | null = null;
  private _cell: T | null = null;
  private _client = '';
  private _ids: ReadonlyArray<string> = [];
  private _since = 0;
  private _furthest = 0;
  private _timer?: ReturnType<typeof setTimeout>;
}

export namespace WaitModel {
  export interface IOptions<T> extends IKernelSources {
    runningCells: IRunningCells<T>;
  }

  export interface IState<T> {
    readonly cell: T;
    readonly client: string;
    /** True if the cell waits for a resume and not for a turn. */
    readonly isSuspended: boolean;
    /** Text that changes every second. */
    readonly text: string;
    /** Text without times, for screen readers. */
    readonly plain: string;
    /** Elapsed fraction of the wait; undefined if unknown. */
    readonly fraction?: number;
  }
}
