import type { StatusItemModel } from '../model/statusitem';
import type { IClient, IDevice } from '../protocol';
import {
  client,
  CONFIG,
  device,
  grant,
  runningStatus,
  status,
  type FakeApi,
  type FakeCurrent
} from './fakes';
import { GivenStatusItem, pass } from './given';

describe('what the status item says', () => {
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

  const simulated = device({ simulated: true });

  const texts: [string, Partial<IClient>, IDevice[]?][] = [
    ['GPU: idle', { phase: 'idle' }],
    ['GPU: running', { phase: 'running' }],
    [
      'GPU: turn overrun',
      { phase: 'overrun', state_text: 'turn overrun · it has not left the GPU' }
    ],
    ['GPU: waiting', { phase: 'waiting' }],
    ['GPU: #2 in queue', { phase: 'waiting', queue_position: 2 }],
    [
      'GPU: #2 in queue · about 40 s',
      { phase: 'waiting', queue_position: 2, expected_wait: 40 }
    ],
    [
      'GPU: #3 in queue · about 1 min 35 s',
      { phase: 'waiting', queue_position: 3, expected_wait: 95 }
    ],
    [
      'GPU: #9 in queue · about 2 h 30 min',
      { phase: 'waiting', queue_position: 9, expected_wait: 9000 }
    ],
    [
      'GPU: #1 in queue',
      { phase: 'waiting', queue_position: 1, expected_wait: 0 }
    ],
    [
      'GPU: idle · memory moves off in 5 min',
      { idle_warned: true, evicted_in: 300, suspended_in: 900 }
    ],
    [
      'GPU: idle · suspended in 1 min',
      { idle_warned: true, evicted_in: 90, suspended_in: 60 }
    ],
    ['GPU: idle', { idle_warned: true }],
    ['GPU: idle', { idle_warned: false, evicted_in: 300 }],
    ['GPU: idle (simulated)', {}, [simulated]],
    [
      'GPU: #2 in queue · about 40 s (simulated)',
      { phase: 'waiting', queue_position: 2, expected_wait: 40 },
      [simulated]
    ],
    [
      'GPU: idle (simulated)',
      { devices: ['GPU-1', 'GPU-2'] },
      [device(), device({ uuid: 'GPU-2', simulated: true })]
    ],
    // Not bound to a device yet: marked if it can only get simulated ones.
    ['GPU: idle (simulated)', { devices: [] }, [simulated]],
    ['GPU: idle', { devices: [] }, [simulated, device({ uuid: 'GPU-2' })]],
    ['GPU: idle', { devices: [] }, []]
  ];
  texts.forEach(([text, changes, devices]) => {
    it(`says "${text}" of ${JSON.stringify(changes)}`, async () => {
      await given.clients([client(changes)], devices);
      expect(model.text).toBe(text);
      expect(model.isShown).toBe(true);
    });
  });

  it('marks a client without a device if all are going to be simulated', async () => {
    await given.snapshot({
      ...status([client({ devices: [] })], []),
      config: { ...CONFIG, simulate: true }
    });
    expect(model.text).toBe('GPU: idle (simulated)');
  });

  it('says for how long the GPU is held', async () => {
    await given.clients([client({ hold_seconds_left: 30 })]);
    expect(model.text).toBe('GPU: idle');
    expect(model.details).toContainEqual({ label: 'Held', value: 'for 30 s' });
  });

  it('says how long the turn lasts', async () => {
    await given.snapshot(runningStatus(12));
    expect(model.text).toBe('GPU: running · up to 12 s left');
    expect(model.phase).toBe('running');
  });

  it('says that the GPU is held where nothing runs', async () => {
    await given.clients(
      [client({ state: 'held', hold_seconds_left: 300 })],
      [device({ grants: [grant({ held: true })] })]
    );
    expect(model.text).toBe('GPU: held · 5 min left');
    expect(model.shortText).toBe('GPU: held');
    expect(model.details.map(({ value }) => value)).toContain(
      'held by this kernel'
    );
  });

  it('takes the earliest deadline of several devices', async () => {
    await given.clients(
      [client({ phase: 'running', devices: ['GPU-1', 'GPU-2'] })],
      [
        device({ grants: [grant({ seconds_left: 20 })] }),
        device({ uuid: 'GPU-2', grants: [grant({ seconds_left: 5 })] })
      ]
    );
    expect(model.text).toBe('GPU: running · up to 5 s left');
  });

  it('counts down once a second between snapshots, and not below zero', async () => {
    await given.snapshot(runningStatus(2.5));
    expect(model.text).toBe('GPU: running · up to 3 s left');
    given.changes = 0;
    await pass(0.5);
    expect(model.text).toBe('GPU: running · up to 2 s left');
    await pass(0.9);
    expect(model.text).toBe('GPU: running · up to 2 s left');
    await pass(0.1);
    expect(model.text).toBe('GPU: running · up to 1 s left');
    await pass(1);
    expect(model.text).toBe('GPU: running · up to 0 s left');
    await pass(60);
    expect(model.text).toBe('GPU: running · up to 0 s left');
    // Three seconds, and once the announcement.
    expect(given.changes).toBe(4);
  });

  it('changes at most once a second however long the countdown', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(30));
    await pass(1.5);
    given.changes = 0;
    await pass(20);
    expect(given.changes).toBe(20);
  });

  it('counts the expected wait down, then promises nothing', async () => {
    await given.clients([
      client({ phase: 'waiting', queue_position: 1, expected_wait: 3 })
    ]);
    await pass(2);
    expect(model.text).toBe('GPU: #1 in queue · about 1 s');
    await pass(2);
    expect(model.text).toBe('GPU: #1 in queue');
  });

  it('counts down until idleness costs the kernel its place', async () => {
    await given.clients([client({ idle_warned: true, evicted_in: 61 })]);
    await pass(2);
    expect(model.text).toBe('GPU: idle · memory moves off in 59 s');
    expect(model.announcement).toBe('GPU: idle');
  });

  it('follows a new snapshot instead of its own count', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(10));
    await pass(4);
    api.socket.sendSnapshot(runningStatus(30));
    expect(model.text).toBe('GPU: running · up to 30 s left');
    api.socket.sendSnapshot(runningStatus(null));
    expect(model.text).toBe('GPU: running');
  });

  it('announces a state that lasts, not every second of it', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(30));
    await pass(0.9);
    expect(model.announcement).toBe('');
    await pass(0.1);
    expect(model.announcement).toBe('GPU: running');
    await pass(5);
    expect(model.announcement).toBe('GPU: running');
    api.socket.sendSnapshot(status([client({ phase: 'draining' })]));
    api.socket.sendSnapshot(status([client({ phase: 'idle' })]));
    await pass(1);
    expect(model.announcement).toBe('GPU: idle');
  });
});
