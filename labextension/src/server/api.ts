import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type { IVisibility } from '../base/browser';
import type {
  IClient,
  IConfig,
  IHistory,
  IQuota,
  IStatus,
  QuotaChanges,
  WithSchema
} from '../base/protocol';

const ROOT = 'gpushare/api';

/** The server's refusal, or its silence. */
export class ApiError extends Error {
  /**
   * @param message - what a person should read
   * @param status - the HTTP status; 0 if the server was not reached
   * @param reason - the server's word for it
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

/** What can be done with a client, without further words. */
export type Action = 'release' | 'suspend' | 'resume' | 'evict';

/**
 * The server extension's REST calls, which reject with {@link ApiError}, and
 * event socket. No other file talks to the server.
 */
export class Api {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  status(): Promise<IStatus> {
    return this._call('GET', ['status']);
  }

  /** The client that a Jupyter kernel belongs to, or null if it is not shared. */
  async clientOf(kernelId: string): Promise<string | null> {
    try {
      const path = ['kernels', kernelId];
      return (await this._call<{ client: string }>('GET', path)).client;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        return null;
      }
      throw error;
    }
  }

  /**
   * What happened since `after`, a {@link IHistory.next}; 0: in the last
   * minutes.
   */
  history(after: number): Promise<IHistory> {
    const path = ['history'];
    return this._call('GET', path, undefined, { after });
  }

  quota(clientId: string): Promise<WithSchema<IQuota>> {
    const path = ['clients', clientId, 'quota'];
    return this._call('GET', path);
  }

  /** Change a quota; resolves with all of it. */
  setQuota(clientId: string, changes: QuotaChanges): Promise<IQuota> {
    const path = ['clients', clientId, 'quota'];
    return this._call('PATCH', path, changes);
  }

  async act(clientId: string, action: Action): Promise<void> {
    await this._call('POST', ['clients', clientId, action]);
  }

  /**
   * Keep the devices between cells for so many seconds; 0: no longer. Resolves
   * with the seconds left, null if it holds nothing.
   */
  async hold(clientId: string, seconds: number): Promise<number | null> {
    const path = ['clients', clientId, 'hold'];
    type Hold = Pick<IClient, 'hold_seconds_left'>;
    return (await this._call<Hold>('POST', path, { seconds }))
      .hold_seconds_left;
  }

  config(): Promise<WithSchema<IConfig>> {
    return this._call('GET', ['config']);
  }

  setConfig(changes: Readonly<Record<string, unknown>>): Promise<IConfig> {
    return this._call('PATCH', ['config'], changes);
  }

  /** Open a socket whose frames `parseMessage` reads. The caller closes it. */
  openEvents(): WebSocket {
    const { wsUrl, token, appendToken, WebSocket } = this._settings;
    let url = URLExt.join(wsUrl, ROOT, 'events');
    if (appendToken && token !== '') {
      url += `?token=${encodeURIComponent(token)}`;
    }
    return new WebSocket(url);
  }

  private async _call<T>(
    method: 'GET' | 'PATCH' | 'POST',
    path: ReadonlyArray<string>,
    body?: unknown,
    query: Readonly<Record<string, string | number>> = {}
  ): Promise<T> {
    // Watching is no activity: idle servers must still be culled.
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
      // A proxy's page, say; the status line below tells more than it does.
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

/** {@link Api}, or what tests put in its place. */
export type IApi = Pick<Api, keyof Api>;

/** What a model needs to ask the server, as long as the page can be seen. */
export interface IServerAccess {
  readonly api: IApi;
  readonly visibility: IVisibility;
}
