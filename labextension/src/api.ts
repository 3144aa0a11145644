import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import {
  isHistory,
  isStatus,
  type IConfig,
  type IHistory,
  type IQuota,
  type IStatus,
  type QuotaChanges,
  type WithSchema
} from './protocol';

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

/** The server extension's REST calls and event socket. */
export interface IApi {
  /** The present state of sharing. Rejects with {@link ApiError}. */
  status(): Promise<IStatus>;

  /**
   * The client that a Jupyter kernel belongs to, or null if it is not shared.
   * Rejects with {@link ApiError}.
   */
  clientOf(kernelId: string): Promise<string | null>;

  /**
   * What happened since `after`, a {@link IHistory.next}; 0: in the last
   * minutes. Rejects with {@link ApiError}.
   */
  history(after: number): Promise<IHistory>;

  /** A client's quota. Rejects with {@link ApiError}. */
  quota(clientId: string): Promise<WithSchema<IQuota>>;

  /** Change a quota; resolves with all of it. Rejects with {@link ApiError}. */
  setQuota(clientId: string, changes: QuotaChanges): Promise<IQuota>;

  /** Do something with a client. Rejects with {@link ApiError}. */
  act(clientId: string, action: Action): Promise<void>;

  /**
   * Keep the devices between cells for so many seconds; 0: no longer. Resolves
   * with the seconds left, null if it holds nothing. Rejects with
   * {@link ApiError}.
   */
  hold(clientId: string, seconds: number): Promise<number | null>;

  /** The coordinator's settings. Rejects with {@link ApiError}. */
  config(): Promise<WithSchema<IConfig>>;

  /** Change settings; resolves with all. Rejects with {@link ApiError}. */
  setConfig(changes: Readonly<Record<string, unknown>>): Promise<IConfig>;

  /** Open a socket whose frames `parseMessage` reads. The caller closes it. */
  openEvents(): WebSocket;
}

/** The only place that talks to the server. */
export class Api implements IApi {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  async status(): Promise<IStatus> {
    const data = await this._call('GET', ['status']);
    if (!isStatus(data)) {
      throw new ApiError('The server sent no GPU sharing status.', 200);
    }
    return data;
  }

  async clientOf(kernelId: string): Promise<string | null> {
    try {
      const data = await this._call('GET', ['kernels', kernelId]);
      const { client } = data as { client?: unknown };
      return typeof client === 'string' ? client : null;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        return null;
      }
      throw error;
    }
  }

  async history(after: number): Promise<IHistory> {
    const data = await this._call('GET', ['history'], undefined, { after });
    if (!isHistory(data)) {
      throw new ApiError('The server sent no history of GPU sharing.', 200);
    }
    return data;
  }

  async quota(clientId: string): Promise<WithSchema<IQuota>> {
    const path = ['clients', clientId, 'quota'];
    return (await this._call('GET', path)) as WithSchema<IQuota>;
  }

  async setQuota(clientId: string, changes: QuotaChanges): Promise<IQuota> {
    const path = ['clients', clientId, 'quota'];
    return (await this._call('PATCH', path, changes)) as IQuota;
  }

  async act(clientId: string, action: Action): Promise<void> {
    await this._call('POST', ['clients', clientId, action]);
  }

  async hold(clientId: string, seconds: number): Promise<number | null> {
    const path = ['clients', clientId, 'hold'];
    const data = await this._call('POST', path, { seconds });
    const left = (data as { hold_seconds_left?: unknown }).hold_seconds_left;
    return typeof left === 'number' ? left : null;
  }

  async config(): Promise<WithSchema<IConfig>> {
    return (await this._call('GET', ['config'])) as WithSchema<IConfig>;
  }

  async setConfig(
    changes: Readonly<Record<string, unknown>>
  ): Promise<IConfig> {
    return (await this._call('PATCH', ['config'], changes)) as IConfig;
  }

  openEvents(): WebSocket {
    const { wsUrl, token, appendToken, WebSocket } = this._settings;
    let url = URLExt.join(wsUrl, ROOT, 'events');
    if (appendToken && token !== '') {
      url += `?token=${encodeURIComponent(token)}`;
    }
    return new WebSocket(url);
  }

  private async _call(
    method: 'GET' | 'PATCH' | 'POST',
    path: ReadonlyArray<string>,
    body?: unknown,
    query: Readonly<Record<string, string | number>> = {}
  ): Promise<unknown> {
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
    let data: unknown = null;
    try {
      data = JSON.parse(text);
    } catch {
      // A proxy's page, say; the status line below tells more than it does.
    }
    if (response.ok && data !== null) {
      return data;
    }
    const said = data as { reason?: string; message?: string } | null;
    throw new ApiError(
      said?.message ||
        said?.reason ||
        `${response.status} ${response.statusText}`,
      response.status,
      said?.reason
    );
  }
}
