import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import type {
  IConfig,
  IHistory,
  IQuota,
  IStatus,
  QuotaChanges,
  WithSchema
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

/**
 * The server extension's REST calls, which reject with {@link ApiError}, and
 * event socket. No other file talks to the server.
 */
export class Api {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** The present state of sharing. */
  async status(): Promise<IStatus> {
    return (await this._call('GET', ['status'])) as IStatus;
  }

  /**
   * The client that a Jupyter kernel belongs to, or null if it is not shared.
   *
   */
  async clientOf(kernelId: string): Promise<string | null> {
    try {
      const data = await this._call('GET', ['kernels', kernelId]);
      return (data as { client: string }).client;
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
  async history(after: number): Promise<IHistory> {
    const path = ['history'];
    return (await this._call('GET', path, undefined, { after })) as IHistory;
  }

  /** A client's quota. */
  async quota(clientId: string): Promise<WithSchema<IQuota>> {
    const path = ['clients', clientId, 'quota'];
    return (await this._call('GET', path)) as WithSchema<IQuota>;
  }

  /** Change a quota; resolves with all of it. */
  async setQuota(clientId: string, changes: QuotaChanges): Promise<IQuota> {
    const path = ['clients', clientId, 'quota'];
    return (await this._call('PATCH', path, changes)) as IQuota;
  }

  /** Do something with a client. */
  async act(clientId: string, action: Action): Promise<void> {
    await this._call('POST', ['clients', clientId, action]);
  }

  /**
   * Keep the devices between cells for so many seconds; 0: no longer. Resolves
   * with the seconds left, null if it holds nothing.
   */
  async hold(clientId: string, seconds: number): Promise<number | null> {
    const path = ['clients', clientId, 'hold'];
    const data = await this._call('POST', path, { seconds });
    return (data as { hold_seconds_left: number | null }).hold_seconds_left;
  }

  /** The coordinator's settings. */
  async config(): Promise<WithSchema<IConfig>> {
    return (await this._call('GET', ['config'])) as WithSchema<IConfig>;
  }

  /** Change settings; resolves with all. */
  async setConfig(
    changes: Readonly<Record<string, unknown>>
  ): Promise<IConfig> {
    return (await this._call('PATCH', ['config'], changes)) as IConfig;
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
    const refusal = data as { reason: string; message: string } | null;
    throw new ApiError(
      refusal?.message || `${response.status} ${response.statusText}`,
      response.status,
      refusal?.reason
    );
  }
}

/** {@link Api}, or what tests put in its place. */
export type IApi = Pick<Api, keyof Api>;
