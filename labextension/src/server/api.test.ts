/**
 * Tests of Api against an HTTP server.
 *
 * @jest-environment node
 */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { ServerConnection } from '@jupyterlab/services';

import { client, status } from '../testing/fakes';
import { Api } from './api';

describe('Api, against an HTTP server', () => {
  let server: Server;
  let api: Api;
  let settings: ServerConnection.ISettings;
  let requests: {
    method: string;
    url: string;
    authorization?: string;
    body: string;
  }[];
  let answer: { code: number; body: string };

  beforeEach(async () => {
    requests = [];
    server = createServer((request, response) => {
      const { method, url, headers } = request;
      let body = '';
      request.on('data', data => (body += data));
      request.on('end', () => {
        const { authorization } = headers;
        requests.push({ method: method!, url: url!, authorization, body });
        response.writeHead(answer.code, { 'Content-Type': 'application/json' });
        response.end(answer.body);
      });
    });
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as AddressInfo;
    settings = ServerConnection.makeSettings({
      baseUrl: `http://127.0.0.1:${port}/user/ada/`,
      wsUrl: `ws://127.0.0.1:${port}/user/ada/`,
      token: 'secret & more',
      appendToken: true
    });
    api = new Api(settings);
  });

  afterEach(async () => {
    server.closeAllConnections();
    await new Promise(resolve => server.close(resolve));
  });

  function answers(code: number, body: unknown): void {
    answer = {
      code,
      body: typeof body === 'string' ? body : JSON.stringify(body)
    };
  }

  it('gets the status below the base URL, authorised, and not as activity', async () => {
    const present = status([client()]);
    answers(200, present);
    await expect(api.status()).resolves.toEqual(present);
    const [{ url, authorization }] = requests;
    expect(url).toMatch(/^\/user\/ada\/gpushare\/api\/status\?/);
    expect(url).toContain('no_track_activity=1');
    expect(authorization).toBe('token secret & more');
  });

  it('treats an unknown kernel as not shared', async () => {
    answers(404, { reason: 'unknown-kernel', message: 'No such kernel.' });
    await expect(api.kernel('k')).resolves.toBeNull();
  });

  it.each([
    [
      { message: 'The coordinator does not answer.', reason: 'away' },
      'The coordinator does not answer.'
    ],
    ['<html>Bad gateway</html>', '503 Service Unavailable']
  ])('reports the refusal %j', async (body, message) => {
    answers(503, body);
    await expect(api.status()).rejects.toMatchObject({ message, status: 503 });
    await expect(api.kernel('k')).rejects.toMatchObject({ message });
  });

  it.each(['null', '<html></html>'])(
    'refuses the answer %s as a status',
    async body => {
      answers(200, body);
      await expect(api.status()).rejects.toMatchObject({ name: 'ApiError' });
    }
  );

  it('reports a server that is not reached', async () => {
    server.closeAllConnections();
    await new Promise(resolve => server.close(resolve));
    await expect(api.status()).rejects.toMatchObject({
      name: 'ApiError',
      status: 0
    });
  });

  const answer200 = { client: 'c', hold_seconds_left: 7 };

  it.each<[string, string, object | null, unknown, () => Promise<unknown>]>([
    ['GET', 'kernels/k%2F1?', null, answer200, () => api.kernel('k/1')],
    ['GET', 'history?after=3&', null, answer200, () => api.history(3)],
    [
      'PATCH',
      'clients/run%3Aa%40b/quota?',
      { share: 0.5 },
      answer200,
      () => api.setQuota('run:a@b', { share: 0.5 })
    ],
    ['POST', 'clients/c/evict?', null, undefined, () => api.act('c', 'evict')],
    ['POST', 'clients/c/hold?', { seconds: 9 }, 7, () => api.hold('c', 9)],
    ['GET', 'config?', null, answer200, () => api.config()],
    [
      'PATCH',
      'config?',
      { time_quantum: 5 },
      answer200,
      () => api.setConfig({ time_quantum: 5 })
    ]
  ])(
    'sends %s %s with %j, and reports its refusal',
    async (method, path, body, is, call) => {
      answers(200, answer200);
      await expect(call()).resolves.toEqual(is);
      expect(requests[0].method).toBe(method);
      expect(requests[0].url).toContain(`/gpushare/api/${path}`);
      expect(requests[0].body).toBe(body === null ? '' : JSON.stringify(body));
      answers(409, { reason: 'conflict', message: 'The client has ended.' });
      await expect(call()).rejects.toMatchObject({ reason: 'conflict' });
    }
  );

  it('opens the event socket, with the token if it must be in the URL', () => {
    const urls: string[] = [];
    const WebSocket = class {
      constructor(url: string) {
        urls.push(url);
      }
    } as unknown as typeof globalThis.WebSocket;
    new Api({ ...settings, WebSocket }).openEvents();
    new Api({ ...settings, WebSocket, appendToken: false }).openEvents();
    const url = `${settings.wsUrl}gpushare/api/events`;
    expect(urls).toEqual([`${url}?token=secret%20%26%20more`, url]);
  });
});
