/** REST calls and event socket of the server extension. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { IVisibility } from '../base/browser';
import type {
  IClient,
  IConfig,
  IHistory,
  IQuota,
  ISharedKernel,
  IStatus,
  QuotaChanges,
  WithSchema
} from '../base/protocol';

const ROOT = 'gpushare/api';

/** Refusal of the server, or failure to reach the server. */
export class ApiError extends Error {
  /**
   * @param message - text for users
   * @param status - HTTP status; 0 if the server was not reached
   * @param reason - reason for programs
   */
  constructor(
    message: string,
    readonly status: number,
    readonly reason = ''
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

/** Action on a client that needs no arguments. */
export type Action = 'release' | 'suspend' | 'resume' | 'evict';

/**
 * REST calls and event socket of the server extension.
 *
 * A call rejects with {@link ApiError}. Only this class sends requests to the
 * server.
 */
export class Api {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  status(): Promise<IStatus> {
    return this._call('GET', ['status']);
  }

  /** Return a Jupyter kernel, or null if the kernel is not shared. */
  async kernel(kernelId: string): Promise<ISharedKernel | null> {
    try {
      return await this._call('GET', ['kernels', kernelId]);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        return null;
      }
      throw error;
    }
  }

  /**
   * Return the entries since `after`, which is an {@link IHistory.next}, or 0
   * for the last minutes.
   */
  history(after: number): Promise<IHistory> {
    const path = ['history'];
    return this._call('GET', path, undefined, { after });
  }

  quota(clientId: string): Promise<WithSchema<IQuota>> {
    const path = ['clients', clientId, 'quota'];
    return this._call('GET', path);
  }

  /** Change a quota. Return the whole new quota. */
  setQuota(clientId: string, changes: QuotaChanges): Promise<IQuota> {
    const path = ['clients', clientId, 'quota'];
    return this._call('PATCH', path, changes);
  }

  async act(clientId: string, action: Action): Promise<void> {
    await this._call('POST', ['clients', clientId, action]);
  }

  /**
   * Keep the devices between cells for a number of seconds, or end the hold for
   * 0. Return the remaining seconds, or null without a hold.
   */
  async hold(clientId: string, seconds: number): Promise<number | null> {
    const path = ['clients', clientId, 'hold'];
    type Hold = Pick<IClient, 'hold_seconds_left'>;
    return (await this._call<Hold>('POST', path, { seconds }))
      .hold_seconds_left;
  }

  /** Cancel the start of a kernel that waits for a node with room. */
  async cancelStart(kernelId: string): Promise<void> {
    await this._call('DELETE', ['starts', kernelId]);
  }

  config(): Promise<WithSchema<IConfig>> {
    return this._call('GET', ['config']);
  }

  setConfig(changes: Readonly<Record<string, unknown>>): Promise<IConfig> {
    return this._call('PATCH', ['config'], changes);
  }

  /**
   * Open a socket whose frames `parseMessage` reads. The caller closes the
   * socket.
   */
  openEvents(): WebSocket {
    const { wsUrl, token, appendToken, WebSocket } = this._settings;
    let url = URLExt.join(wsUrl, ROOT, 'events');
    if (appendToken && token !== '') {
      url += `?token=${encodeURIComponent(token)}`;
    }
    return new WebSocket(url);
  }

  private async _call<T>(
    method: 'DELETE' | 'GET' | 'PATCH' | 'POST',
    path: ReadonlyArray<string>,
    body?: unknown,
    query: Readonly<Record<string, string | number>> = {}
  ): Promise<T> {
    // Views are no activity: the server must still be culled when idle.
    const search = { ...query, no_track_activity: 1 };
    const url =
      URLExt.join(
        this._settings.baseUrl,
        ROOT,
        ...path.map(encodeURIComponent)
      ) + URLExt.objectToQueryString(search);
    const init: RequestInit = { method };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
    }
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, init, this._settings);
    } catch (error) {
      throw new ApiError((error as Error).message, 0);
    }
    const text = await response.text();
    let data = null;
    try {
      data = JSON.parse(text);
    } catch {
      // The body may be a proxy's page; the status line below is clearer than
      // such a page.
    }
    if (response.ok && data !== null) {
      return data;
    }
    const refusal: { reason: string; message: string } | null = data;
    throw new ApiError(
      refusal?.message || `${response.status} ${response.statusText}`,
      response.status,
      refusal?.reason
    );
  }
}

/** Interface of {@link Api}, for tests. */
export type IApi = Pick<Api, keyof Api>;

/** Access to the server, while the page is visible. */
export interface IServerAccess {
  readonly api: IApi;
  readonly visibility: IVisibility;
}
