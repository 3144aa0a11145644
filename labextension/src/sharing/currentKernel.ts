/** Kernel of the current notebook or console. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { Signal, type ISignal } from '@lumino/signaling';

import { Disposable } from '../base/disposable';

/** Kernel of the current notebook or console. */
export interface ICurrentKernel {
  /** Null without a current notebook or console, or without a kernel. */
  readonly kernelId: string | null;
  /** Path of the notebook or console whose kernel starts; null otherwise. */
  readonly startingPath: string | null;
  readonly changed: ISignal<ICurrentKernel, void>;
  /**
   * Emitted with the kernel's id when the kernel restarts, and after the
   * restart.
   */
  readonly restarting: ISignal<ICurrentKernel, string>;
}

/** {@link ICurrentKernel} of the application's shell or of one document. */
export class CurrentKernel extends Disposable implements ICurrentKernel {
  /**
   * @param sources - signals after which another document may be current
   * @param find - function that returns the session of the current document
   */
  constructor(
    sources: ReadonlyArray<ISignal<unknown, unknown>>,
    private readonly _find: () => ISessionContext | null
  ) {
    super();
    sources.forEach(source => source.connect(this._update, this));
    this._update();
  }

  get kernelId(): string | null {
    return this._kernelId;
  }

  get startingPath(): string | null {
    return this._startingPath;
  }

  readonly changed = new Signal<this, void>(this);

  readonly restarting = new Signal<this, string>(this);

  private _update(): void {
    const session = this._find();
    if (session !== this._session) {
      this._follow(session);
    }
    this._updateKernel();
  }

  private _follow(session: ISessionContext | null): void {
    this._session?.kernelChanged.disconnect(this._updateKernel, this);
    this._session?.statusChanged.disconnect(this._onStatus, this);
    this._session?.disposed.disconnect(this._update, this);
    this._session = session;
    this._wasRestarting = false;
    this._session?.kernelChanged.connect(this._updateKernel, this);
    this._session?.statusChanged.connect(this._onStatus, this);
    this._session?.disposed.connect(this._update, this);
  }

  private _updateKernel(): void {
    const session = this._session?.isDisposed ? null : this._session;
    const kernelId = session?.session?.kernel?.id ?? null;
    const startingPath =
      kernelId === null && session?.hasNoKernel === false ? session.path : null;
    if (kernelId !== this._kernelId || startingPath !== this._startingPath) {
      this._kernelId = kernelId;
      this._startingPath = startingPath;
      this.changed.emit();
    }
  }

  private _onStatus(_: ISessionContext, status: Kernel.Status): void {
    this._updateKernel();
    const isRestarting = status === 'restarting' || status === 'autorestarting';
    const isBack = this._wasRestarting && status === 'idle';
    if (isRestarting || isBack) {
      this._wasRestarting = isRestarting;
      if (this._kernelId !== null) {
        this.restarting.emit(this._kernelId);
      }
    }
  }

  private _session: ISessionContext | null = null;
  private _kernelId: string | null = null;
  private _startingPath: string | null = null;
  private _wasRestarting = false;
}

/** Create the current kernel of the shell, for notebooks and consoles. */
export function currentKernel(
  { shell }: JupyterFrontEnd,
  notebooks: INotebookTracker,
  consoles: IConsoleTracker | null
): CurrentKernel {
  const sources = [notebooks, consoles, shell].flatMap(
    (source): ISignal<unknown, unknown>[] =>
      source?.currentChanged ? [source.currentChanged] : []
  );
  return new CurrentKernel(sources, () => {
    const owner = [notebooks.currentWidget, consoles?.currentWidget].find(
      widget => widget && widget === shell.currentWidget
    );
    return owner?.sessionContext ?? null;
  });
}
