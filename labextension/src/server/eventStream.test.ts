/**
 * Tests of EventStream: reconnection with backoff, polling by GET, and hidden
 * pages.
 */

import type { EventMessage } from '../base/protocol';
import {
  client,
  status,
  type FakeApi,
  type FakeVisibility
} from '../testing/fakes';
import { Given, pass, flushPromises } from '../testing/given';
import { ApiError } from './api';
import { backoff, EventStream } from './eventStream';

const SNAPSHOT = status([client()]);

describe('backoff', () => {
  it('grows from one second to half a minute, with jitter', () => {
    expect(backoff(0, 0)).toBe(1000);
    expect(backoff(0, 0.999)).toBeLessThanOrEqual(1000);
    expect(backoff(3, 0)).toBe(4000);
    expect(backoff(3, 0.999)).toBeCloseTo(8000, -1);
    expect(backoff(20, 0)).toBe(15000);
    expect(backoff(2000, 0.999)).toBeLessThanOrEqual(30000);
  });
});

describe('EventStream', () => {
  let given: Given;
  let api: FakeApi;
  let visibility: FakeVisibility;
  let stream: EventStream;
  let messages: EventMessage[];

  beforeEach(() => {
    given = new Given();
    ({ api, visibility } = given);
    jest.spyOn(Math, 'random').mockReturnValue(1);
    stream = new EventStream(given);
    messages = [];
    stream.message.connect((_, message) => messages.push(message));
  });

  afterEach(() => {
    stream.dispose();
    expect(jest.getTimerCount()).toBe(0);
    given.dispose();
  });

  it('connects only after its start', () => {
    expect(api.sockets).toHaveLength(0);
    stream.start();
    stream.start();
    expect(api.sockets).toHaveLength(1);
  });

  it('forwards snapshots, and reports an unavailable coordinator', () => {
    stream.start();
    api.socket.sendSnapshot(SNAPSHOT);
    api.socket.send({
      type: 'unavailable',
      reason: 'unreachable',
      message: 'The coordinator does not answer.'
    });
    expect(messages).toEqual([
      { type: 'snapshot', status: SNAPSHOT },
      {
        type: 'unavailable',
        reason: 'unreachable',
        message: 'The coordinator does not answer.'
      }
    ]);
    expect(api.statusCalls).toBe(0);
  });

  it.each(['not JSON', '[]', 'null', '{"type":"of another protocol"}'])(
    'ignores the frame %s and stays connected',
    text => {
      stream.start();
      api.socket.send(text);
      expect(messages).toEqual([]);
      expect(api.socket.isClosed).toBe(false);
    }
  );

  it('reconnects a second after a working socket breaks, without a GET', async () => {
    stream.start();
    api.socket.sendSnapshot(SNAPSHOT);
    api.socket.break();
    await pass(0.999);
    expect(api.sockets).toHaveLength(1);
    await pass(0.001);
    expect(api.sockets).toHaveLength(2);
    expect(api.statusCalls).toBe(0);
    expect(messages).toHaveLength(1);
    api.socket.sendSnapshot(SNAPSHOT);
    expect(messages).toHaveLength(2);
  });

  it('retries ever more rarely, down to every half minute, and reports the outage', async () => {
    stream.start();
    for (const delay of [1, 2, 4, 8, 16, 30, 30]) {
      const tried = api.sockets.length;
      api.socket.break();
      await flushPromises();
      expect(messages[messages.length - 1]).toEqual({
        type: 'unavailable',
        reason: '',
        message: 'unreachable'
      });
      await pass(delay - 0.001);
      expect(api.sockets).toHaveLength(tried);
      await pass(0.001);
      expect(api.sockets).toHaveLength(tried + 1);
    }
  });

  it('starts again with one second after a success', async () => {
    stream.start();
    for (const delay of [1, 2, 4]) {
      api.socket.break();
      await pass(delay);
    }
    api.socket.sendSnapshot(SNAPSHOT);
    api.socket.break();
    await pass(1);
    expect(api.sockets).toHaveLength(5);
  });

  it('polls by GET every five seconds while no socket opens', async () => {
    api.answer = SNAPSHOT;
    stream.start();
    api.socket.break();
    await flushPromises();
    expect(messages).toEqual([{ type: 'snapshot', status: SNAPSHOT }]);
    await pass(4.999);
    expect(api.statusCalls).toBe(1);
    await pass(0.001);
    expect(api.statusCalls).toBe(2);
    expect(messages).toHaveLength(2);
  });

  it('stops polling when the socket works again', async () => {
    api.answer = SNAPSHOT;
    stream.start();
    api.socket.break();
    await pass(1);
    api.socket.sendSnapshot(SNAPSHOT);
    await pass(60);
    expect(api.statusCalls).toBe(1);
    expect(api.sockets).toHaveLength(2);
  });

  it('closes a socket that opens but sends nothing', async () => {
    api.answer = SNAPSHOT;
    stream.start();
    const silent = api.socket;
    await pass(10);
    expect(silent.isClosed).toBe(true);
    expect(messages).toEqual([{ type: 'snapshot', status: SNAPSHOT }]);
    await pass(1);
    expect(api.sockets).toHaveLength(2);
  });

  it('keeps a socket on which nothing changes', async () => {
    stream.start();
    api.socket.sendSnapshot(SNAPSHOT);
    await pass(3600);
    expect(api.sockets).toHaveLength(1);
    expect(api.socket.isClosed).toBe(false);
  });

  it.each([
    [503, 'unreachable', 'unreachable'],
    [404, '', 'no_extension']
  ])('reports for %p %p the reason %p', async (code, word, reason) => {
    const message = 'The coordinator does not answer.';
    api.answer = new ApiError(message, code, word);
    stream.start();
    api.socket.break();
    await flushPromises();
    expect(messages).toEqual([{ type: 'unavailable', reason, message }]);
  });

  it('is silent while the page is hidden, and continues at once when the page is visible', async () => {
    stream.start();
    api.socket.sendSnapshot(SNAPSHOT);
    const first = api.socket;
    visibility.set(true);
    expect(first.isClosed).toBe(true);
    expect(jest.getTimerCount()).toBe(0);
    first.sendSnapshot(SNAPSHOT);
    await pass(3600);
    expect(api.sockets).toHaveLength(1);
    expect(messages).toHaveLength(1);
    visibility.set(false);
    expect(api.sockets).toHaveLength(2);
  });

  it('does not connect when started hidden', () => {
    visibility.set(true);
    stream.start();
    expect(api.sockets).toHaveLength(0);
    visibility.set(false);
    expect(api.sockets).toHaveLength(1);
  });

  it('drops an answer that arrives after the page was hidden', async () => {
    api.answer = SNAPSHOT;
    stream.start();
    api.socket.break();
    visibility.set(true);
    await flushPromises();
    expect(api.statusCalls).toBe(1);
    expect(messages).toEqual([]);
    expect(jest.getTimerCount()).toBe(0);
  });

  it('survives a browser that refuses to create the socket', async () => {
    api.answer = SNAPSHOT;
    api.openEvents = () => {
      throw new DOMException('blocked', 'SecurityError');
    };
    stream.start();
    await flushPromises();
    expect(messages).toEqual([{ type: 'snapshot', status: SNAPSHOT }]);
  });

  it('leaves nothing behind when it is disposed', async () => {
    stream.start();
    const socket = api.socket;
    stream.dispose();
    stream.dispose();
    expect(socket.isClosed).toBe(true);
    expect(jest.getTimerCount()).toBe(0);
    visibility.set(false);
    stream.start();
    await pass(60);
    expect(api.sockets).toHaveLength(1);
  });
});
