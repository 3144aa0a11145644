import { KernelClients } from '../model/kernels';
import { FakeApi, FakeVisibility, settle } from './fakes';

describe('KernelClients', () => {
  let api: FakeApi;
  let visibility: FakeVisibility;
  let kernels: KernelClients;

  beforeEach(() => {
    api = new FakeApi();
    api.clients = { a: 'client-a' };
    visibility = new FakeVisibility();
    kernels = new KernelClients({ api, visibility });
  });

  afterEach(() => kernels.dispose());

  it('answers when the server has, and asks once', async () => {
    expect(kernels.clientOf('a')).toBeUndefined();
    expect(kernels.clientOf('a')).toBeUndefined();
    await settle();
    expect(kernels.clientOf('a')).toBe('client-a');
    expect(kernels.clientOf('b')).toBeUndefined();
    await settle();
    expect(kernels.clientOf('b')).toBeNull();
    expect(api.kernelCalls).toEqual(['a', 'b']);
  });

  it('asks nothing while the page is hidden', async () => {
    visibility.set(true);
    kernels.clientOf('a');
    await settle();
    expect(api.kernelCalls).toEqual([]);
    visibility.set(false);
    kernels.clientOf('a');
    expect(api.kernelCalls).toEqual(['a']);
  });

  it('drops an answer that was asked for before the kernel restarted', async () => {
    const answers: ((client: string) => void)[] = [];
    api.clientOf = () => new Promise(resolve => answers.push(resolve));
    kernels.clientOf('a');
    kernels.recheck('a');
    kernels.clientOf('a');
    answers[1]('client-b');
    await settle();
    answers[0]('client-a');
    await settle();
    expect(kernels.clientOf('a')).toBe('client-b');
  });

  it('gives the old answer until the new one is there', async () => {
    kernels.clientOf('a');
    await settle();
    api.clients = { a: 'client-b' };
    kernels.recheck('a');
    expect(kernels.clientOf('a')).toBe('client-a');
    await settle();
    expect(kernels.clientOf('a')).toBe('client-b');
  });
});
