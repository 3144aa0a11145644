import type { IDisposable } from '@lumino/disposable';

import type { ApiError, IApi } from '../api';
import type { ICurrentKernel } from './current';
import type { ISharingModel } from './sharing';

/** Milliseconds. */
const RETRY_DELAY = 5000;

/**
 * Says for one kernel connection that waits are drawn here, so that the kernel
 * does not print them as well: once to each client and each coordinator.
 */
export class DrawsTeller implements IDisposable {
  constructor(private readonly _options: DrawsTeller.IOptions) {
    const { sharing, kernel } = _options;
    sharing.changed.connect(this._check, this);
    kernel.changed.connect(this._check, this);
    kernel.restarting.connect(this._onRestarting, this);
    this._check();
  }

  /** Whether they are drawn here; what was said before stays said. */
  get isEnabled(): boolean {
    return this._isEnabled;
  }
  set isEnabled(value: boolean) {
    this._isEnabled = value;
    this._check();
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    clearTimeout(this._retryTimer);
    const { sharing, kernel } = this._options;
    sharing.changed.disconnect(this._check, this);
    kernel.changed.disconnect(this._check, this);
    kernel.restarting.disconnect(this._onRestarting, this);
  }

  private _onRestarting(): void {
    // The client that comes back knows nothing of what the last one was told.
    this._told = '';
    this._check();
  }

  private _check(): void {
    const { sharing, kernel, session } = this._options;
    const { kernelId } = kernel;
    const id = session();
    if (!this._isEnabled || this._isDisposed || !kernelId || !id) {
      return;
    }
    const view = sharing.view(kernelId);
    if (view.kind === 'unknown') {
      return;
    }
    const told =
      view.kind === 'client'
        ? [view.client.id, id, sharing.status?.coordinator?.pid].join(' ')
        : '';
    if (told !== this._told) {
      this._told = told;
      if (told) {
        void this._tell(kernelId, id);
      }
    }
  }

  private async _tell(kernelId: string, session: string): Promise<void> {
    const told = this._told;
    clearTimeout(this._retryTimer);
    try {
      await this._options.api.draws(kernelId, session);
    } catch (error) {
      const { status = 0 } = error as Partial<ApiError>;
      // An older server says 404, also the next time.
      if (told === this._told && (status === 0 || status >= 500)) {
        this._retryTimer = setTimeout(() => {
          this._told = '';
          this._check();
        }, RETRY_DELAY);
      }
    }
  }

  private _told = '';
  private _isEnabled = true;
  private _isDisposed = false;
  private _retryTimer?: ReturnType<typeof setTimeout>;
}

export namespace DrawsTeller {
  export interface IOptions {
    api: IApi;
    sharing: ISharingModel;
    kernel: ICurrentKernel;
    /** What the connection writes into `header.session`, if there is one. */
    session: () => string | undefined;
  }
}
