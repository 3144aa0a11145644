/** Waits of one notebook or console, with their views. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Cell } from '@jupyterlab/cells';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

import { Disposable } from '../base/disposable';
import { CurrentKernel, type ICurrentKernel } from '../sharing/currentKernel';
import type { IGpuSharing } from '../tokens';
import { LongWaitNotifier } from './longWaitNotifier';
import { WaitDisplays } from './waitDisplays';
import { WaitingView } from './waitingView';
import { WaitModel, type IRunningCells } from './waitModel';

/** Waits of one notebook or console, with their views. */
export class DocumentWaits extends Disposable {
  constructor(private readonly _options: DocumentWaits.IOptions) {
    super();
    const { document, runningCells } = _options;
    const { model: sharing, settings, visibility } = _options.sharing;
    const { sessionContext } = document;
    this._kernel = new CurrentKernel([], () => sessionContext);
    const common = { sharing, current: this._kernel, runningCells, visibility };
    this._wait = new WaitModel(common);
    this._displays = new WaitDisplays(sessionContext, sharing);
    this._longWaitNotifier = new LongWaitNotifier({
      ...common,
      isInSight: _options.isInSight,
      minSeconds: () => settings.values.notifyAfterWait
    });
    this._view = new WaitingView(_options.resume);
    this._wait.changed.connect(this._show, this);
    this._kernel.restarting.connect(this._onRestarting, this);
    document.disposed.connect(this.dispose, this);
    this._wait.bindTo(settings, 'showWaiting');
    this._displays.bindTo(settings, 'showWaiting');
  }

  get kernel(): ICurrentKernel {
    return this._kernel;
  }

  /** Emitted when a wait has ended that is long by the settings. */
  get longWaitEnded(): ISignal<unknown, LongWaitNotifier.IEnd> {
    return this._longWaitNotifier.ended;
  }

  dispose(): void {
    this._wait.dispose();
    this._displays.dispose();
    this._longWaitNotifier.dispose();
    this._view.dispose();
    this._options.runningCells.dispose();
    this._kernel.dispose();
    super.dispose();
  }

  private _show(): void {
    const { state } = this._wait;
    if (state) {
      this._view.show(state.cell.node, state);
    } else {
      this._view.hide();
    }
    if (this._options.document.isVisible) {
      this._options.announce(state?.plain ?? '');
    }
  }

  private _onRestarting(_: ICurrentKernel, kernelId: string): void {
    this._options.sharing.model.recheck(kernelId);
  }

  private readonly _kernel: CurrentKernel;
  private readonly _wait: WaitModel<Cell>;
  private readonly _displays: WaitDisplays;
  private readonly _longWaitNotifier: LongWaitNotifier<Cell>;
  private readonly _view: WaitingView;
}

export namespace DocumentWaits {
  export interface IOptions {
    document: Widget & { readonly sessionContext: ISessionContext };
    /**
     * True if the document is the current one, regardless of the page's
     * visibility.
     */
    isInSight: () => boolean;
    /** Cells of the document. This object disposes of the cells. */
    runningCells: IRunningCells<Cell> & IDisposable;
    sharing: IGpuSharing;
    /** Function that resumes a client. */
    resume: (clientId: string) => void;
    /** Function that announces the wait; empty without a wait. */
    announce: (text: string) => void;
  }
}
