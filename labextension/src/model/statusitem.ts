import type { TranslationBundle } from '@jupyterlab/translation';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { Switchable } from '../disposable';
import type { IVisibility } from '../visibility';
import type { ICurrentKernel } from './current';
import { formatDetails, type IDetail } from './details';
import { formatAnnouncement, formatHeadline, untilNextSecond } from './format';
import type { ISharingModel, KernelView } from './sharing';
import { chipText } from './toolbarchip';

/** Milliseconds that a state must last before it is announced. */
const SETTLED = 1000;

const UNKNOWN: KernelView = { kind: 'unknown' };

/** What the status bar says about the current kernel. */
export class StatusItemModel extends Switchable {
  constructor(options: StatusItemModel.IOptions) {
    super();
    this._sharing = options.sharing;
    this._current = options.current;
    this._visibility = options.visibility;
    this._trans = options.trans;
    this._sharing.changed.connect(this.refresh, this);
    this._current.changed.connect(this.refresh, this);
    this._current.restarting.connect(this._onRestarting, this);
    this._visibility.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Emitted when anything below reads differently than before. */
  readonly stateChanged = new Signal<this, void>(this);

  /** False without a current kernel, or while nothing is known of it. */
  get isShown(): boolean {
    return this._text !== '';
  }

  /** The headline, empty if not shown. */
  get text(): string {
    return this._text;
  }

  /** The headline for where there is little room: without times. */
  get shortText(): string {
    return this._shortText;
  }

  /** The client's phase, or `away` or `unshared`; for the style sheet. */
  get phase(): string {
    return this._phase;
  }

  /** What a screen reader should say; changes with the state, not the times. */
  get announcement(): string {
    return this._announcement;
  }

  /** The explanation behind the headline. */
  get details(): ReadonlyArray<IDetail> {
    return this._details;
  }

  dispose(): void {
    clearTimeout(this._tickTimer);
    clearTimeout(this._announceTimer);
    this._watch?.dispose();
    super.dispose();
  }

  private _onRestarting(_: ICurrentKernel, kernelId: string): void {
    this._sharing.recheck(kernelId);
  }

  protected refresh(): void {
    clearTimeout(this._tickTimer);
    if (this.isDisposed) {
      return;
    }
    if (this._visibility.hidden) {
      // All is brought up to date when somebody can see it.
      clearTimeout(this._announceTimer);
      this._nextAnnouncement = this._announcement;
      return;
    }
    const kernelId = this.isEnabled ? this._current.kernelId : null;
    this._updateWatch(kernelId !== null);
    const view = kernelId === null ? UNKNOWN : this._sharing.view(kernelId);
    this._show(view);
    this._scheduleTick(view);
  }

  /**
   * The server is asked nothing until the first kernel; then the connection is
   * kept while other documents are looked at, so that coming back is instant.
   */
  private _updateWatch(hasKernel: boolean): void {
    if (!this.isEnabled) {
      this._watch?.dispose();
      this._watch = null;
    } else if (hasKernel && !this._watch) {
      this._watch = this._sharing.watch();
    }
  }

  private _show(view: KernelView): void {
    const text = formatHeadline(view, this._trans);
    const shortText = chipText(view, this._trans);
    const phase = view.kind === 'client' ? view.client.phase : view.kind;
    const details = formatDetails(view, this._sharing.status, this._trans);
    this._scheduleAnnouncement(formatAnnouncement(view, this._trans));
    if (
      text === this._text &&
      phase === this._phase &&
      areEqual(details, this._details)
    ) {
      return;
    }
    this._text = text;
    this._shortText = shortText;
    this._phase = phase;
    this._details = details;
    this.stateChanged.emit();
  }

  /** Turns may be short; only a state that lasts is worth interrupting for. */
  private _scheduleAnnouncement(announcement: string): void {
    if (announcement === this._nextAnnouncement) {
      return;
    }
    this._nextAnnouncement = announcement;
    clearTimeout(this._announceTimer);
    this._announceTimer = setTimeout(() => {
      this._announcement = announcement;
      this.stateChanged.emit();
    }, SETTLED);
  }

  /** Wake when the next whole second of a shown time has passed. */
  private _scheduleTick(view: KernelView): void {
    const seconds = view.kind === 'client' ? view.next?.left : null;
    if (seconds) {
      this._tickTimer = setTimeout(
        () => this.refresh(),
        untilNextSecond(seconds) * 1000
      );
    }
  }

  private readonly _sharing: ISharingModel;
  private readonly _current: ICurrentKernel;
  private readonly _visibility: IVisibility;
  private readonly _trans: TranslationBundle;
  private _watch: IDisposable | null = null;
  private _text = '';
  private _shortText = '';
  private _phase = '';
  private _announcement = '';
  private _nextAnnouncement = '';
  private _details: ReadonlyArray<IDetail> = [];
  private _tickTimer?: ReturnType<typeof setTimeout>;
  private _announceTimer?: ReturnType<typeof setTimeout>;
}

export namespace StatusItemModel {
  export interface IOptions {
    sharing: ISharingModel;
    current: ICurrentKernel;
    visibility: IVisibility;
    trans: TranslationBundle;
  }
}

function areEqual(
  a: ReadonlyArray<IDetail>,
  b: ReadonlyArray<IDetail>
): boolean {
  return (
    a.length === b.length &&
    a.every(
      (detail, i) => detail.label === b[i].label && detail.value === b[i].value
    )
  );
}
