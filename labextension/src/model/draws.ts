import type { ApiError, IApi } from '../api';
import { Switchable } from '../disposable';
import type { ICurrentKernel } from './current';
import type { ISharingModel } from './sharing';

/** Milliseconds. */
const RETRY_DELAY = 5000;

/**
 * Says for one kernel connection that waits are drawn here, so that the kernel
 * does not print them as well: once to each client and each coordinator. What
 * was said stays said when it is switched off.
 */
export class DrawsTeller extends Switchable {
  constructor(private readonly _options: DrawsTeller.IOptions) {
    super();
    const { sharing, kernel } = _options;
    sharing.changed.connect(this.refresh, this);
    kernel.changed.connect(this.refresh, this);
    kernel.restarting.connect(this._onRestarting, this);
    this.refresh();
  }

  dispose(): void {
    clearTimeout(this._retryTimer);
    super.dispose();
  }

  private _onRestarting(): void {
    // The client that comes back knows nothing of what the last one was told.
    this._told = '';
    this.refresh();
  }

  protected refresh(): void {
    const { sharing, kernel, session } = this._options;
    const { kernelId } = kernel;
    const id = session();
    if (!this.isEnabled || this.isDisposed || !kernelId || !id) {
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
          this.refresh();
        }, RETRY_DELAY);
      }
    }
  }

  private _told = '';
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
