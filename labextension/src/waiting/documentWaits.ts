import type { ISessionContext } from '@jupyterlab/apputils';
import type { Cell } from '@jupyterlab/cells';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

import { Disposable } from '../base/disposable';
import { CurrentKernel, type ICurrentKernel } from '../sharing/currentKernel';
import type { IGpuSharing } from '../tokens';
import { LongWaits } from './longWaitNotifier';
import { WaitDisplays } from './waitDisplays';
import { WaitingView } from './waitingView';
import { WaitModel, type IRuns } from './waitModel';

/** The waits of one notebook or console, and where they are drawn. */
export class DocumentWaits extends Disposable {
  constructor(private readonly _options: DocumentWaits.IOptions) {
    super();
    const { document, runs } = _options;
    const { model: sharing, settings, visibility } = _options.sharing;
    const { sessionContext } = document;
    this._kernel = new CurrentKernel([], () => sessionContext);
    const common = { sharing, current: this._kernel, runs, visibility };
    this._wait = new WaitModel(common);
    this._displays = new WaitDisplays(sessionContext, sharing);
    this._longWaits = new LongWaits({
      ...common,
      isInSight: _options.isInSight,
      shortest: () => settings.values.notifyAfterWait
    });
    this._view = new WaitingView(_options.resume);
    this._wait.changed.connect(this._show, this);
    this._kernel.restarting.connect(this._onRestarting, this);
    document.disposed.connect(this.dispose, this);
    this._wait.follow(settings, 'showWaiting');
    this._displays.follow(settings, 'showWaiting');
  }

  get kernel(): ICurrentKernel {
    return this._kernel;
  }

  /** Emitted when a wait has ended that counts as long by the settings. */
  get longWaitEnded(): ISignal<unknown, LongWaits.IEnd> {
    return this._longWaits.ended;
  }

  dispose(): void {
    this._wait.dispose();
    this._displays.dispose();
    this._longWaits.dispose();
    this._view.dispose();
    this._options.runs.dispose();
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
      this._options.say(state?.plain ?? '');
    }
  }

  private _onRestarting(_: ICurrentKernel, kernelId: string): void {
    this._options.sharing.model.recheck(kernelId);
  }

  private readonly _kernel: CurrentKernel;
  private readonly _wait: WaitModel<Cell>;
  private readonly _displays: WaitDisplays;
  private readonly _longWaits: LongWaits<Cell>;
  private readonly _view: WaitingView;
}

export namespace DocumentWaits {
  export interface IOptions {
    document: Widget & { readonly sessionContext: ISessionContext };
    /** Whether the user looks at it, if at the page at all. */
    isInSight: () => boolean;
    /** Disposed along with this. */
    runs: IRuns<Cell> & IDisposable;
    sharing: IGpuSharing;
    /** Resume a client. */
    resume: (clientId: string) => void;
    /** Say politely what waits; empty: nothing does. */
    say: (text: string) => void;
  }
}
