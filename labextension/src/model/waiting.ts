import type { TranslationBundle } from '@jupyterlab/translation';
import { Signal, type ISignal } from '@lumino/signaling';

import { Switchable } from '../disposable';
import type { IVisibility } from '../visibility';
import { isSuspended } from './actions';
import type { ICurrentKernel } from './current';
import { formatDuration } from './format';
import { nameOf } from './names';
import type { IClientView, ISharingModel } from './sharing';

/** Seconds that a wait must last to be shown: shorter ones would flicker. */
const WORTH_SHOWING = 1;

/** The cells of a document that have been sent to its kernel. */
export interface IRuns<T> {
  /** The first that is not done; null if none runs. */
  first(): T | null;
  /** Emitted when another may be the first. */
  readonly changed: ISignal<IRuns<T>, void>;
}

/** What is to be read below the cell that waits for the GPU. */
export class WaitModel<T> extends Switchable {
  constructor(private readonly _options: WaitModel.IOptions<T>) {
    super();
    const { sharing, kernel, runs, visibility } = _options;
    this._clock = _options.clock ?? (() => performance.now() / 1000);
    sharing.changed.connect(this.refresh, this);
    kernel.changed.connect(this.refresh, this);
    runs.changed.connect(this.refresh, this);
    visibility.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Emitted when anything below reads differently. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** What waits, and is to be drawn at; null if nothing is to be shown. */
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
      return; // All is brought up to date when somebody can see it.
    }
    clearTimeout(this._timer);
    const view = this.isEnabled ? this._waitingView() : null;
    const cell = view && this._options.runs.first();
    if (!view || !cell) {
      this._cell = null;
      this._show(null);
      return;
    }
    if (cell !== this._cell) {
      this._cell = cell;
      this._since = this._clock();
    }
    const waited = this._clock() - this._since;
    this._show(
      waited < WORTH_SHOWING ? null : this._describe(view, cell, waited)
    );
    this._timer = setTimeout(
      () => this.refresh(),
      waited < WORTH_SHOWING ? (WORTH_SHOWING - waited) * 1000 : 1000
    );
  }

  /** The kernel's client, while its GPU calls wait. */
  private _waitingView(): IClientView | null {
    const { kernelId } = this._options.kernel;
    const view = kernelId && this._options.sharing.view(kernelId);
    return view &&
      view.kind === 'client' &&
      (view.client.phase === 'waiting' || isSuspended(view.client))
      ? view
      : null;
  }

  private _describe(
    view: IClientView,
    cell: T,
    waited: number
  ): WaitModel.IState<T> {
    const { trans } = this._options;
    const { client } = view;
    const remaining = remainingWait(view);
    if (isSuspended(client)) {
      const text = trans.__(
        'Suspended: calls to the GPU wait until you resume it.'
      );
      return { cell, client: client.id, isSuspended: true, text, plain: text };
    }
    return {
      cell,
      client: client.id,
      isSuspended: false,
      text: waitText(view, trans),
      plain: plainText(client.queue_position, trans),
      // An expectation that has passed promises nothing any more.
      fraction: remaining ? waited / (waited + remaining) : undefined
    };
  }

  private _show(state: WaitModel.IState<T> | null): void {
    if (state === null && this._state === null) {
      return;
    }
    this._state = state;
    this._changed.emit();
  }

  private readonly _clock: () => number;
  private _state: WaitModel.IState<T> | null = null;
  private _cell: T | null = null;
  private _since = 0;
  private _timer?: ReturnType<typeof setTimeout>;
  private _changed = new Signal<this, void>(this);
}

export namespace WaitModel {
  export interface IOptions<T> {
    sharing: ISharingModel;
    kernel: ICurrentKernel;
    runs: IRuns<T>;
    visibility: IVisibility;
    trans: TranslationBundle;
    /** Seconds that only go forward; for tests. */
    clock?: () => number;
  }

  export interface IState<T> {
    readonly cell: T;
    /** The id of the client that waits. */
    readonly client: string;
    /** It waits for a resume, not for a turn. */
    readonly isSuspended: boolean;
    /** Changes every second. */
    readonly text: string;
    /** Without times, for who listens. */
    readonly plain: string;
    /** How much of the wait is over, as far as known; it may go back. */
    readonly fraction?: number;
  }
}

function waitText(view: IClientView, trans: TranslationBundle): string {
  const { client, expectedWait } = view;
  const head = plainText(client.queue_position, trans);
  const text = expectedWait
    ? trans.__('%1, about %2', head, formatDuration(expectedWait, trans))
    : head;
  const who = runnersText(view, trans);
  return who ? trans.__('%1 (%2)', text, who) : text;
}

/** Seconds; for who is next it is no longer than the turns that run. */
function remainingWait(view: IClientView): number | null {
  const { client, expectedWait, others } = view;
  return expectedWait || client.queue_position !== 1
    ? expectedWait
    : Math.max(0, ...others.map(({ secondsLeft }) => secondsLeft ?? 0));
}

function plainText(position: number | null, trans: TranslationBundle): string {
  return position === null
    ? trans.__('Waiting for the GPU')
    : trans.__('Waiting for the GPU: #%1', position);
}

/** Who has the GPU meanwhile; empty if nobody has. */
function runnersText(view: IClientView, trans: TranslationBundle): string {
  const names = view.others.map(({ client }) =>
    client
      ? nameOf(client, trans, view.client.tenant)
      : trans.__('another client')
  );
  if (names.length !== 1) {
    return names.length > 0 ? trans.__('%1 are running', names.join(', ')) : '';
  }
  const [{ secondsLeft }] = view.others;
  if (!secondsLeft) {
    return trans.__('%1 is running', names[0]);
  }
  const left = formatDuration(secondsLeft, trans);
  // That is until the deadline; often a turn ends before.
  return view.expectedWait && view.expectedWait + 1 < secondsLeft
    ? trans.__('%1 is running, up to %2 left', names[0], left)
    : trans.__('%1 is running, %2 left', names[0], left);
}
