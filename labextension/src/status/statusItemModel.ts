import { JSONExt } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { Toggleable } from '../base/disposable';
import { untilNextSecond } from '../base/units';
import type { IKernelSources, KernelView } from '../sharing/sharingModel';
import { formatDetails, type IDetail } from './clientDetails';
import { chipText, formatHeadline } from './headline';

/** Milliseconds that a state must last before it is announced. */
const ANNOUNCE_DELAY_MS = 1000;

/** The state of the current kernel, as the status bar or a toolbar shows it. */
export class StatusItemModel extends Toggleable {
  constructor(private readonly _options: IKernelSources) {
    super();
    const { sharing, current, visibility } = _options;
    sharing.changed.connect(this.refresh, this);
    current.changed.connect(this.refresh, this);
    current.restarting.connect((_, id) => sharing.recheck(id), this);
    visibility.changed.connect(this.refresh, this);
    this.refresh();
  }

  /** Emitted when anything below is different; all of it is set only here. */
  readonly stateChanged = new Signal<this, void>(this);

  /** The headline; empty if not shown. */
  text = '';
  /** The headline without times, for where there is little room. */
  shortText = '';
  /** The client's phase, or `away` or `unshared`; for the style sheet. */
  phase = '';
  details: IDetail[] = [];
  /** The text for screen readers; changes with the state, not the times. */
  announcement = '';

  /**
   * Whether the kernel shares the GPU. Without a coordinator that is not known of
   * kernels that were not seen before.
   */
  isShared = false;

  /** False without a current kernel, or while nothing is known of it. */
  get isShown(): boolean {
    return this.text !== '';
  }

  dispose(): void {
    clearTimeout(this._tickTimer);
    clearTimeout(this._announceTimer);
    this._watch?.dispose();
    super.dispose();
  }

  protected refresh(): void {
    const { sharing, current, visibility } = this._options;
    clearTimeout(this._tickTimer);
    if (this.isDisposed) {
      return;
    }
    if (visibility.hidden) {
      // All is brought up to date when the page can be seen.
      clearTimeout(this._announceTimer);
      this._nextAnnouncement = this.announcement;
      return;
    }
    const kernelId = this.isEnabled ? current.kernelId : null;
    this._updateWatch(kernelId !== null);
    const view: KernelView =
      kernelId === null ? { kind: 'unknown' } : sharing.view(kernelId);
    this._show(view);
    const seconds = view.kind === 'client' ? view.next?.left : null;
    if (seconds) {
      this._tickTimer = setTimeout(
        () => this.refresh(),
        untilNextSecond(seconds) * 1000
      );
    }
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
      this._watch = this._options.sharing.watch();
    }
  }

  private _show(view: KernelView): void {
    const { sharing } = this._options;
    const { kind } = view;
    this.isShared =
      kind === 'client' || (this.isShared && kind === 'unavailable');
    const text = formatHeadline(view);
    const phase = view.kind === 'client' ? view.client.phase : kind;
    const details = formatDetails(view, sharing.status);
    this._scheduleAnnouncement(formatHeadline(view, false));
    const isSame = text === this.text && phase === this.phase;
    if (!isSame || !JSONExt.deepEqual(details, this.details)) {
      const shortText = chipText(view);
      Object.assign(this, { text, shortText, phase, details });
      this.stateChanged.emit();
    }
  }

  /** Turns may be short; only a state that lasts is worth interrupting for. */
  private _scheduleAnnouncement(announcement: string): void {
    if (announcement === this._nextAnnouncement) {
      return;
    }
    this._nextAnnouncement = announcement;
    clearTimeout(this._announceTimer);
    this._announceTimer = setTimeout(() => {
      this.announcement = announcement;
      this.stateChanged.emit();
    }, ANNOUNCE_DELAY_MS);
  }

  private _watch: IDisposable | null = null;
  private _nextAnnouncement = '';
  private _tickTimer?: ReturnType<typeof setTimeout>;
  private _announceTimer?: ReturnType<typeof setTimeout>;
}
