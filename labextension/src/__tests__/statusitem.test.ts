import { nullTranslator } from '@jupyterlab/translation';

import { ApiError } from '../api';
import { SharingModel } from '../model/sharing';
import { StatusItemModel } from '../model/statusitem';
import type { IClient, IDevice } from '../protocol';
import {
  client,
  device,
  FakeApi,
  FakeCurrent,
  FakeVisibility,
  GIB,
  runningStatus,
  settle,
  status
} from './fakes';

describe('StatusItemModel', () => {
  let api: FakeApi;
  let visibility: FakeVisibility;
  let current: FakeCurrent;
  let sharing: SharingModel;
  let model: StatusItemModel;
  let changes: number;

  beforeEach(() => {
    jest.useFakeTimers();
    api = new FakeApi();
    api.clients = { kernel: 'mine', second: 'other' };
    visibility = new FakeVisibility();
    current = new FakeCurrent();
    sharing = new SharingModel({ api, visibility, random: () => 1 });
    model = new StatusItemModel({
      sharing,
      current,
      visibility,
      trans: nullTranslator.load('')
    });
    changes = 0;
    model.stateChanged.connect(() => changes++);
  });

  afterEach(() => {
    model.dispose();
    sharing.dispose();
    expect(jest.getTimerCount()).toBe(0);
    jest.useRealTimers();
  });

  async function pass(seconds: number): Promise<void> {
    await jest.advanceTimersByTimeAsync(seconds * 1000);
  }

  /** A notebook with the shared kernel is current, and this is what is known. */
  async function given(clients: IClient[], devices?: IDevice[]): Promise<void> {
    current.set('kernel');
    api.socket.sendSnapshot(status(clients, devices));
    await settle();
  }

  const simulated = device({ simulated: true });

  const texts: [string, Partial<IClient>, IDevice[]?][] = [
    ['GPU: idle', { phase: 'idle' }],
    ['GPU: running', { phase: 'running' }],
    ['GPU: suspended', { phase: 'suspended' }],
    ['GPU: turn ending', { phase: 'draining' }],
    ['GPU: turn overrun', { phase: 'overrun' }],
    ['GPU: waiting', { phase: 'waiting' }],
    ['GPU: #2 in queue', { phase: 'waiting', queue_position: 2 }],
    [
      'GPU: #2 in queue · about 40 s',
      { phase: 'waiting', queue_position: 2, expected_wait: 40 }
    ],
    [
      'GPU: #3 in queue · about 2 min',
      { phase: 'waiting', queue_position: 3, expected_wait: 95 }
    ],
    [
      'GPU: #9 in queue · about 3 h',
      { phase: 'waiting', queue_position: 9, expected_wait: 9000 }
    ],
    [
      'GPU: #1 in queue',
      { phase: 'waiting', queue_position: 1, expected_wait: 0 }
    ],
    ['GPU: held', { phase: 'held' }],
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
      await given([client(changes)], devices);
      expect(model.text).toBe(text);
      expect(model.isShown).toBe(true);
    });
  });

  it('marks a client without a device if all are going to be simulated', async () => {
    current.set('kernel');
    api.socket.sendSnapshot({
      ...status([client({ devices: [] })], []),
      config: { simulate: true }
    });
    await settle();
    expect(model.text).toBe('GPU: idle (simulated)');
  });

  it('says for how long the GPU is held, and copes with settings that are chosen by measurement', async () => {
    current.set('kernel');
    api.socket.sendSnapshot({
      ...status([client({ hold_seconds_left: 30 })]),
      config: { time_quantum: 'auto', idle_release: 'auto', policy: 'fair' }
    });
    await settle();
    expect(model.text).toBe('GPU: idle');
    expect(model.details).toContainEqual({ label: 'Held', value: 'for 30 s' });
  });

  it('says how long the turn lasts', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(12));
    await settle();
    expect(model.text).toBe('GPU: running · 12 s left');
    expect(model.phase).toBe('running');
  });

  it('takes the earliest deadline of several devices', async () => {
    const grant = { client: 'mine', epoch: 1, held_seconds: 1 };
    await given(
      [client({ phase: 'running', devices: ['GPU-1', 'GPU-2'] })],
      [
        device({ grants: [{ ...grant, seconds_left: 20 }] }),
        device({ uuid: 'GPU-2', grants: [{ ...grant, seconds_left: 5 }] })
      ]
    );
    expect(model.text).toBe('GPU: running · 5 s left');
  });

  it('counts down once a second between snapshots, and not below zero', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(2.5));
    await settle();
    expect(model.text).toBe('GPU: running · 3 s left');
    changes = 0;
    await pass(0.5);
    expect(model.text).toBe('GPU: running · 2 s left');
    await pass(0.9);
    expect(model.text).toBe('GPU: running · 2 s left');
    await pass(0.1);
    expect(model.text).toBe('GPU: running · 1 s left');
    await pass(1);
    expect(model.text).toBe('GPU: running · 0 s left');
    await pass(60);
    expect(model.text).toBe('GPU: running · 0 s left');
    // Three seconds, and once the announcement.
    expect(changes).toBe(4);
  });

  it('changes at most once a second however long the countdown', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(30));
    await pass(1.5);
    changes = 0;
    await pass(20);
    expect(changes).toBe(20);
  });

  it('counts the expected wait down, then promises nothing', async () => {
    await given([
      client({ phase: 'waiting', queue_position: 1, expected_wait: 3 })
    ]);
    await pass(2);
    expect(model.text).toBe('GPU: #1 in queue · about 1 s');
    await pass(2);
    expect(model.text).toBe('GPU: #1 in queue');
  });

  it('follows a new snapshot instead of its own count', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(10));
    await pass(4);
    api.socket.sendSnapshot(runningStatus(30));
    expect(model.text).toBe('GPU: running · 30 s left');
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

  it('is hidden, and asks the server nothing, without a current kernel', async () => {
    expect(model.isShown).toBe(false);
    await pass(60);
    expect(api.sockets).toHaveLength(0);
    await given([client()]);
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
    await given([client()]);
    api.socket.send({ type: 'away', reason: 'It was stopped.' });
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
    api.socket.send({ type: 'away', reason: 'not_running' });
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
    await given(clients);
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
    await given([]);
    expect(model.text).toBe('GPU: not shared');
    api.clients = { kernel: 'mine' };
    api.socket.sendSnapshot(status([client()]));
    await settle();
    expect(model.text).toBe('GPU: idle');
  });

  it('finds a kernel that comes back from a restart as another client', async () => {
    await given([client()]);
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
    await given([client()]);
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
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(30));
    await settle();
    visibility.set(true);
    changes = 0;
    expect(jest.getTimerCount()).toBe(0);
    current.set('second');
    current.set('kernel');
    await pass(10);
    expect(changes).toBe(0);
    expect(api.kernelCalls).toEqual(['kernel']);
    visibility.set(false);
    expect(model.text).toBe('GPU: running · 20 s left');
    expect(api.sockets).toHaveLength(2);
  });

  it('closes the connection when the user turns it off', async () => {
    await given([client()]);
    model.isEnabled = false;
    expect(model.isShown).toBe(false);
    expect(api.socket.isClosed).toBe(true);
    model.isEnabled = true;
    expect(model.text).toBe('GPU: idle');
    expect(api.sockets).toHaveLength(2);
  });

  it('stops its timers and the connection when it is disposed', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(30));
    await settle();
    model.dispose();
    expect(jest.getTimerCount()).toBe(0);
    expect(api.socket.isClosed).toBe(true);
    changes = 0;
    current.set('second');
    await pass(60);
    expect(changes).toBe(0);
  });

  describe('details', () => {
    const lines = () =>
      model.details.map(({ label, value }) => `${label}: ${value}`);

    it('tells label, quota, memory, use and who runs', async () => {
      const grant = { epoch: 1, held_seconds: 1, seconds_left: 4 };
      await given(
        [
          client({ phase: 'waiting', queue_position: 1 }),
          client({ id: 'theirs', label: 'eval.ipynb' })
        ],
        [device({ simulated: true, grants: [{ client: 'theirs', ...grant }] })]
      );
      expect(lines()).toEqual([
        'Label: train.ipynb',
        'Quota: share 50 %, limit 90 %, memory 8 GiB, online',
        'Memory: 3 GiB allocated, 1.5 GiB on the device',
        'So far: 12 s on the GPU, 30 s waiting',
        'Test GPU (simulated): eval.ipynb running'
      ]);
    });

    it.each([
      [{ label: 'secret.ipynb', tenant: 'bob' }, 'a client of bob running'],
      [{ id: 'mine' }, 'this kernel running']
    ])('names the runner %j as "%s"', async (changes, text) => {
      const runner = client({ id: 'theirs', ...changes });
      const grant = { client: runner.id, epoch: 1, held_seconds: 1 };
      await given(
        [client(), runner],
        [device({ grants: [{ ...grant, seconds_left: null }] })]
      );
      expect(lines()).toContain(`Test GPU: ${text}`);
      expect(lines().join()).not.toContain('secret');
    });

    it.each([
      [{ resident_is_estimate: false }, '1.5 GiB on the device'],
      [{ resident_is_estimate: true }, 'about 1.5 GiB on the device'],
      [
        { host_pinned: GIB, host_pageable: GIB / 2 },
        '1.5 GiB on the device, 1.5 GiB of the host'
      ]
    ])('tells what of the memory is where, %j', async (changes, text) => {
      await given([client(changes)]);
      expect(lines()).toContain(`Memory: 3 GiB allocated, ${text}`);
    });

    it('tells when nobody runs, and when nothing is bounded', async () => {
      const quota = {
        share: null,
        limit: null,
        memory: null,
        resident: null,
        service: null
      };
      await given([client({ quota, allocated: 512 })]);
      expect(lines()).toContain('Quota: none');
      expect(lines()).toContain('Test GPU: nobody running');
      expect(lines()).toContain(
        'Memory: 512 B allocated, 1.5 GiB on the device'
      );
    });
  });
});
