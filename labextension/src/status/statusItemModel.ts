/** Model of a kernel's state, for the status bar or a toolbar. */

import { JSONExt } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { Toggleable } from '../base/disposable';
import { untilNextSecond } from '../base/units';
import type { IKernelSources, KernelView } from '../sharing/sharingModel';
import { formatDetails, type IDetail } from './clientDetails';
import { chipText, formatHeadline } from './headline';

/** Minimum time of a state before its announcement. */
const ANNOUNCE_DELAY_MS = 1000;

/** Model of the current kernel's state, for the status bar or a toolbar. */
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

  /**
   * Emitted when one of the properties below changes. Only this model sets the
   * properties.
   */
  readonly stateChanged = new Signal<this, void>(this);

  /** Headline; empty if hidden. */
  text = '';
  /** Headline without times, for narrow spaces. */
  shortText = '';
  /** Phase of the client, `unavailable` or `unshared`, for the style sheet. */
  phase = '';
  details: IDetail[] = [];
  /**
   * Text for screen readers, which changes with the state but not with times.
   */
  announcement = '';

  /**
   * True if the kernel shares the GPU. Without a coordinator, a kernel counts
   * as shared only if it was shared before.
   */
  isShared = false;

  /** False without a current kernel, or while its state is unknown. */
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
      // The visibility signal causes an update when the page is visible again.
      clearTimeout(this._announceTimer);
      this._nextAnnouncement = this.announcement;
      return;
    }
    const kernelId = this.isEnabled ? current.kernelId : null;
    const startingPath = this.isEnabled ? current.startingPath : null;
    this._updateWatch(kernelId !== null || startingPath !== null);
    const view: KernelView =
      kernelId !== null
        ? sharing.view(kernelId)
        : startingPath !== null
          ? sharing.viewOfStart(startingPath)
          : { kind: 'unknown' };
    this._show(view);
    const seconds =
      view.kind === 'client'
        ? view.next?.left
        : view.kind === 'starting'
          ? view.left
          : null;
    if (seconds) {
      this._tickTimer = setTimeout(
        () => this.refresh(),
        untilNextSecond(seconds) * 1000
      );
    }
  }

  /**
   * Watch from the first kernel on.
   *
   * The connection stays while another document is current, so that a return to
   * the kernel shows its state at once.
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

  /**
   * Announce only a state that lasts, because an announcement interrupts the
   * user.
   */
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
