import { ApiError } from '../api';
import type { StatusItemModel } from '../model/statusitem';
import {
  client,
  runningStatus,
  settle,
  status,
  type FakeApi,
  type FakeCurrent
} from './fakes';
import { GivenStatusItem, pass } from './given';

describe('the kernel that the status item speaks of', () => {
  let given: GivenStatusItem;
  let api: FakeApi;
  let current: FakeCurrent;
  let model: StatusItemModel;

  beforeEach(() => {
    given = new GivenStatusItem();
    ({ api, current } = given.shared);
    ({ model } = given);
  });

  afterEach(() => given.dispose());

  it('is hidden, and asks the server nothing, without a current kernel', async () => {
    expect(model.isShown).toBe(false);
    await pass(60);
    expect(api.sockets).toHaveLength(0);
    await given.clients([client()]);
    current.set(null);
    expect(model.isShown).toBe(false);
  });

  it('is hidden until something is known', async () => {
    current.set('kernel');
    await settle();
    expect(model.isShown).toBe(false);
    api.socket.sendSnapshot(status([client()]));
    expect(model.text).toBe('GPU: idle');
  });

  it('says so for a kernel that is not shared', async () => {
    current.set('plain');
    api.socket.sendSnapshot(status([client()]));
    await settle();
    expect(model.text).toBe('GPU: not shared');
    expect(model.phase).toBe('unshared');
  });

  it('says when the sharing service is away, and when it is back', async () => {
    await given.clients([client()]);
    api.socket.send({
      type: 'away',
      reason: 'unreachable',
      message: 'It was stopped.'
    });
    expect(model.text).toBe('GPU: sharing service away');
    expect(model.phase).toBe('away');
    expect(model.details).toEqual([
      { label: 'Reason', value: 'It was stopped.' }
    ]);
    api.socket.sendSnapshot(status([client()]));
    expect(model.text).toBe('GPU: idle');
  });

  it('does not alarm those who do not share the GPU', async () => {
    current.set('plain');
    await settle();
    api.socket.send({ type: 'away', reason: 'not_running', message: '' });
    expect(model.text).toBe('GPU: not shared');
    current.set('kernel');
    expect(model.isShown).toBe(false);
    await settle();
    expect(model.text).toBe('GPU: sharing service away');
  });

  it('is away when neither socket nor GET gets through', async () => {
    api.answer = new ApiError('Not Found', 404);
    current.set('kernel');
    api.socket.break();
    await settle();
    expect(model.text).toBe('GPU: sharing service away');
  });

  it('lives by GET where no socket opens', async () => {
    api.answer = status([client({ phase: 'suspended' })]);
    current.set('kernel');
    api.socket.break();
    await settle();
    expect(model.text).toBe('GPU: suspended');
  });

  it('follows the current kernel and asks about each only once', async () => {
    const clients = [client(), client({ id: 'other', phase: 'suspended' })];
    await given.clients(clients);
    api.kernelCalls = [];
    current.set('second');
    await settle();
    expect(model.text).toBe('GPU: suspended');
    current.set('kernel');
    current.set('second');
    api.socket.sendSnapshot(status(clients));
    await settle();
    expect(api.kernelCalls).toEqual(['second']);
  });

  it('finds a kernel that registers late', async () => {
    api.clients = {};
    await given.clients([]);
    expect(model.text).toBe('GPU: not shared');
    api.clients = { kernel: 'mine' };
    api.socket.sendSnapshot(status([client()]));
    await settle();
    expect(model.text).toBe('GPU: idle');
  });

  it('finds a kernel that comes back from a restart as another client', async () => {
    await given.clients([client()]);
    api.clients = { kernel: 'again' };
    current.restarting.emit('kernel');
    await settle();
    api.socket.sendSnapshot(
      status([client({ id: 'again', phase: 'suspended' })])
    );
    await settle();
    expect(model.text).toBe('GPU: suspended');
  });

  it('asks again later, not at every snapshot, if the question failed', async () => {
    api.clients = { kernel: new ApiError('busy', 503) };
    await given.clients([client()]);
    for (let i = 0; i < 20; i++) {
      api.socket.sendSnapshot(status([client()]));
      await settle();
    }
    // Once at first, once more because the first snapshot brought new clients.
    expect(api.kernelCalls.length).toBeLessThanOrEqual(2);
    expect(model.isShown).toBe(false);
    api.clients = { kernel: 'mine' };
    await pass(5);
    expect(model.text).toBe('GPU: idle');
  });

  it('does nothing while the page is hidden, then catches up', async () => {
    await given.snapshot(runningStatus(30));
    given.shared.visibility.set(true);
    given.changes = 0;
    expect(jest.getTimerCount()).toBe(0);
    current.set('second');
    current.set('kernel');
    await pass(10);
    expect(given.changes).toBe(0);
    expect(api.kernelCalls).toEqual(['kernel']);
    given.shared.visibility.set(false);
    expect(model.text).toBe('GPU: running · up to 20 s left');
    expect(api.sockets).toHaveLength(2);
  });

  it('closes the connection when the user turns it off', async () => {
    await given.clients([client()]);
    model.isEnabled = false;
    expect(model.isShown).toBe(false);
    expect(api.socket.isClosed).toBe(true);
    model.isEnabled = true;
    expect(model.text).toBe('GPU: idle');
    expect(api.sockets).toHaveLength(2);
  });

  it('stops its timers and the connection when it is disposed', async () => {
    await given.snapshot(runningStatus(30));
    model.dispose();
    expect(jest.getTimerCount()).toBe(0);
    expect(api.socket.isClosed).toBe(true);
    given.changes = 0;
    current.set('second');
    await pass(60);
    expect(given.changes).toBe(0);
  });
});
