import { ApiError } from '../api';
import { DrawsTeller } from '../model/draws';
import { settle, type FakeApi, type FakeCurrent } from './fakes';
import { GivenDocument, pass } from './given';

describe('what the server is told of who draws', () => {
  let given: GivenDocument;
  let api: FakeApi;
  let kernel: FakeCurrent;
  let session: string | undefined;
  let teller: DrawsTeller;
  const told = () => api.changes.map(([, ...rest]) => rest);

  beforeEach(() => {
    given = new GivenDocument();
    ({ api, kernel } = given.options);
    session = 'page-1';
    teller = new DrawsTeller({ ...given.options, session: () => session });
  });

  afterEach(() => {
    teller.dispose();
    given.dispose();
  });

  it('is told once of each connection, and again after a restart', async () => {
    await given.show({});
    await given.show({ phase: 'running' });
    expect(told()).toEqual([['kernel', 'page-1']]);
    session = 'page-2';
    kernel.changed.emit();
    await settle();
    expect(told()).toHaveLength(2);
    kernel.restarting.emit('kernel');
    await settle();
    expect(told()[2]).toEqual(['kernel', 'page-2']);
  });

  it('tells a new coordinator too', async () => {
    await given.show({}, {}, { coordinator: { pid: 1 } });
    api.socket.send({ type: 'away', reason: 'unreachable', message: '' });
    await given.show({}, {}, { coordinator: { pid: 2 } });
    expect(told()).toHaveLength(2);
  });

  it('says nothing of kernels that are not shared, or switched off', async () => {
    kernel.kernelId = 'another';
    await given.show({});
    given.options.sharing.view('another');
    await settle();
    kernel.kernelId = 'kernel';
    teller.isEnabled = false;
    await given.show({});
    expect(told()).toEqual([]);
    teller.isEnabled = true;
    await settle();
    expect(told()).toHaveLength(1);
  });

  it('tries again if the server was not reached, not if it refused', async () => {
    api.refusal = new ApiError('no answer', 0);
    await given.show({});
    api.refusal = null;
    await pass(6);
    expect(told()).toHaveLength(1);
    api.refusal = new ApiError('unknown', 404, 'unknown_route');
    kernel.restarting.emit('kernel');
    await settle();
    api.refusal = null;
    await pass(60);
    expect(told()).toHaveLength(1);
  });
});
