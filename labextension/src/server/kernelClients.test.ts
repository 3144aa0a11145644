/**
 * Tests of the lookup of client ids by kernel: requests, restarts and hidden
 * pages.
 */

import type { FakeApi } from '../testing/fakes';
import { Given, flushPromises } from '../testing/given';
import { KernelClients } from './kernelClients';

describe('KernelClients', () => {
  let given: Given;
  let api: FakeApi;
  let kernels: KernelClients;

  beforeEach(() => {
    given = new Given();
    ({ api } = given);
    api.clients = { a: 'client-a' };
    kernels = given.own(new KernelClients(given));
  });

  afterEach(() => given.dispose());

  it('returns the answer of the server, after one request', async () => {
    expect(kernels.clientOf('a')).toBeUndefined();
    expect(kernels.clientOf('a')).toBeUndefined();
    await flushPromises();
    expect(kernels.clientOf('a')).toBe('client-a');
    expect(kernels.clientOf('b')).toBeUndefined();
    await flushPromises();
    expect(kernels.clientOf('b')).toBeNull();
    expect(api.kernelCalls).toEqual(['a', 'b']);
  });

  it('sends no request while the page is hidden', async () => {
    given.visibility.set(true);
    kernels.clientOf('a');
    await flushPromises();
    expect(api.kernelCalls).toEqual([]);
    given.visibility.set(false);
    kernels.clientOf('a');
    expect(api.kernelCalls).toEqual(['a']);
  });

  it('drops the answer to a request from before a restart of the kernel', async () => {
    const answers: ((client: string) => void)[] = [];
    api.kernel = async kernel => {
      const client = await new Promise<string>(resolve =>
        answers.push(resolve)
      );
      return { kernel, client, node: '' };
    };
    kernels.clientOf('a');
    kernels.recheck('a');
    kernels.clientOf('a');
    answers[1]('client-b');
    await flushPromises();
    answers[0]('client-a');
    await flushPromises();
    expect(kernels.clientOf('a')).toBe('client-b');
  });

  it('rechecks a kernel on a node whose client is missing', async () => {
    api.nodes.a = 'gpu2';
    kernels.clientOf('a');
    await flushPromises();
    api.nodes.a = 'gpu1';
    kernels.recheckMissing(new Set(['client-b']));
    kernels.clientOf('a');
    await flushPromises();
    expect(kernels.nodeOf('a')).toBe('gpu1');
  });

  it('returns the old answer until the new one has arrived', async () => {
    kernels.clientOf('a');
    await flushPromises();
    api.clients = { a: 'client-b' };
    kernels.recheck('a');
    expect(kernels.clientOf('a')).toBe('client-a');
    await flushPromises();
    expect(kernels.clientOf('a')).toBe('client-b');
  });
});
