import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { isStatus, type IStatus } from './protocol';

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

/** The server extension's REST calls and event socket. */
export interface IApi {
  /** The present state of sharing. Rejects with {@link ApiError}. */
  status(): Promise<IStatus>;

  /**
   * The client that a Jupyter kernel belongs to, or null if it is not shared.
   * Rejects with {@link ApiError}.
   */
  clientOf(kernelId: string): Promise<string | null>;

  /** Open a socket whose frames `parseMessage` reads. The caller closes it. */
  openEvents(): WebSocket;
}

/** The only place that talks to the server. */
export class Api implements IApi {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  async status(): Promise<IStatus> {
    const data = await this._get('status');
    if (!isStatus(data)) {
      throw new ApiError('The server sent no GPU sharing status.', 200);
    }
    return data;
  }

  async clientOf(kernelId: string): Promise<string | null> {
    try {
      const data = await this._get('kernels', encodeURIComponent(kernelId));
      const { client } = data as { client?: unknown };
      return typeof client === 'string' ? client : null;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        return null;
      }
      throw error;
    }
  }

  openEvents(): WebSocket {
    const { wsUrl, token, appendToken, WebSocket } = this._settings;
    let url = URLExt.join(wsUrl, ROOT, 'events');
    if (appendToken && token !== '') {
      url += `?token=${encodeURIComponent(token)}`;
    }
    return new WebSocket(url);
  }

  private async _get(...path: string[]): Promise<unknown> {
    // Watching is no activity: idle servers must still be culled.
    const url =
      URLExt.join(this._settings.baseUrl, ROOT, ...path) +
      '?no_track_activity=1';
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, {}, this._settings);
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
