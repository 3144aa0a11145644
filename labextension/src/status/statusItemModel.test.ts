/** Tests of the status item's texts, and of its choice of the kernel. */

import type { IClient, IDevice, IStart, IStatus } from '../base/protocol';
import { ApiError } from '../server/api';
import {
  client,
  CONFIG,
  device,
  grant,
  runningStatus,
  start,
  status,
  type FakeApi,
  type FakeCurrentKernel
} from '../testing/fakes';
import { Given, pass, flushPromises } from '../testing/given';
import { StatusItemModel } from './statusItemModel';

let given: Given;
let api: FakeApi;
let current: FakeCurrentKernel;
let model: StatusItemModel;
/** Number of changes of the model. */
let changes: number;

beforeEach(() => {
  given = new Given(null);
  ({ api, current } = given);
  model = given.own(new StatusItemModel(given));
  changes = 0;
  model.stateChanged.connect(() => changes++);
});

afterEach(() => {
  model.dispose();
  given.sharing.dispose();
  expect(jest.getTimerCount()).toBe(0);
  given.dispose();
});

/** Show a status with the shared kernel of the current notebook. */
async function snapshot(state: IStatus): Promise<void> {
  current.set('kernel');
  await given.snapshot(state);
}

const show = (clients: IClient[], devices?: IDevice[]) =>
  snapshot(status(clients, devices));

describe('a start that waits for a node', () => {
  const waits = (changes: Partial<IStart> = {}): IStatus => ({
    ...status([]),
    starts: [start(changes)]
  });

  it('is shown for the notebook without a kernel, with its place', async () => {
    current.set(null, 'train.ipynb');
    await given.snapshot(waits({ kernel: 'new' }));
    expect(model.text).toBe('node: #2, about 3 min');
    expect(model.shortText).toBe('node: #2');
    expect(model.details).toEqual([
      { label: 'Reason', value: 'the node has no room for the kernel' }
    ]);
    current.set(null, 'other.ipynb');
    expect(model.isShown).toBe(false);
  });

  it('is shown for a kernel that restarts, until it has started', async () => {
    await snapshot(waits({ expected_wait: null, position: 1 }));
    expect(model.text).toBe('node: #1');
    await show([client({})]);
    expect(model.text).toBe('GPU: idle');
  });
});

describe('the text of the status item', () => {
  const simulated = device({ simulated: true });
  const waiting = { phase: 'waiting', queue_position: 2, expected_wait: 40 };
  const both = { devices: ['GPU-1', 'GPU-2'] };

  it.each<[string, Partial<IClient>, IDevice[]]>([
    ['GPU: idle', {}, [device()]],
    [
      'GPU: turn overrun',
      {
        phase: 'overrun',
        state_text: 'turn overrun · work or memory has not left the GPU'
      },
      [device()]
    ],
    ['GPU: #2 in queue · about 40 s', waiting, [device()]],
    ['GPU: #2 in queue · about 40 s (simulated)', waiting, [simulated]],
    [
      'GPU: idle (simulated)',
      both,
      [device(), device({ uuid: 'GPU-2', simulated: true })]
    ],
    // The earliest deadline of several devices counts.
    [
      'GPU: running · up to 5 s left',
      { phase: 'running', ...both },
      [
        device({ grants: [grant({ seconds_left: 20 })] }),
        device({ uuid: 'GPU-2', grants: [grant({ seconds_left: 5 })] })
      ]
    ],
    // A client without a device is marked if it can only get simulated devices.
    ['GPU: idle (simulated)', { devices: [] }, [simulated]],
    ['GPU: idle', { devices: [] }, [simulated, device({ uuid: 'GPU-2' })]],
    ['GPU: idle', { devices: [] }, []]
  ])('is "%s" for %j', async (text, mine, devices) => {
    await show([client(mine)], devices);
    expect(model.text).toBe(text);
    expect(model.isShown).toBe(true);
  });

  it('marks a client without a device if all devices will be simulated', async () => {
    const config = { ...CONFIG, simulate: true };
    await snapshot({ ...status([client({ devices: [] })], []), config });
    expect(model.text).toBe('GPU: idle (simulated)');
  });

  it('counts down once a second between snapshots, and not below zero', async () => {
    await snapshot(runningStatus(2.5));
    expect(model.text).toBe('GPU: running · up to 3 s left');
    changes = 0;
    await pass(0.5);
    expect(model.text).toBe('GPU: running · up to 2 s left');
    await pass(0.9);
    expect(model.text).toBe('GPU: running · up to 2 s left');
    await pass(0.1);
    expect(model.text).toBe('GPU: running · up to 1 s left');
    await pass(61);
    expect(model.text).toBe('GPU: running · up to 0 s left');
    // Three seconds and one announcement.
    expect(changes).toBe(4);
  });

  it('follows a new snapshot instead of its own count', async () => {
    await snapshot(runningStatus(10));
    await pass(4);
    api.socket.sendSnapshot(runningStatus(30));
    expect(model.text).toBe('GPU: running · up to 30 s left');
    api.socket.sendSnapshot(runningStatus(null));
    expect(model.text).toBe('GPU: running');
  });

  it('announces a state that lasts, not every second of it', async () => {
    await snapshot(runningStatus(30));
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

describe('the kernel of the status item', () => {
  it('is hidden without a current kernel, and until the state is known', async () => {
    expect(model.isShown).toBe(false);
    await pass(60);
    expect(api.sockets).toHaveLength(0);
    current.set('kernel');
    await flushPromises();
    expect(model.isShown).toBe(false);
    api.socket.sendSnapshot(status([client()]));
    expect(model.text).toBe('GPU: idle');
    current.set(null);
    expect(model.isShown).toBe(false);
  });

  it('shows an unavailable sharing service, and the end of the outage', async () => {
    await show([client()]);
    const message = 'The coordinator was stopped.';
    api.socket.send({ type: 'unavailable', reason: 'unreachable', message });
    expect(model.text).toBe('GPU: sharing service unavailable');
    expect(model.phase).toBe('unavailable');
    expect(model.details).toEqual([{ label: 'Reason', value: message }]);
    api.socket.sendSnapshot(status([client()]));
    expect(model.text).toBe('GPU: idle');
  });

  it('shows no outage where the GPU is not shared', async () => {
    current.set('plain');
    api.socket.sendSnapshot(status([client()]));
    await flushPromises();
    expect(model.text).toBe('GPU: not shared');
    expect(model.phase).toBe('unshared');
    api.socket.send({
      type: 'unavailable',
      reason: 'not_running',
      message: ''
    });
    expect(model.text).toBe('GPU: not shared');
    current.set('kernel');
    expect(model.isShown).toBe(false);
    await flushPromises();
    expect(model.text).toBe('GPU: sharing service unavailable');
  });

  it('names the node of a kernel on another host', async () => {
    api.clients.far = 'far';
    api.nodes.far = 'gpu2';
    await show([client()]);
    current.set('far');
    await flushPromises();
    expect(model.text).toBe('GPU: on gpu2');
    expect(model.phase).toBe('elsewhere');
    expect(model.details[0].value).toContain('runs on the node gpu2');
    api.nodes.far = 'gpu1';
    current.restarting.emit('far');
    await flushPromises();
    expect(model.text).toBe('GPU: on gpu1');
  });

  it('shows a kernel without a client on a node that has answered', async () => {
    api.clients.far = 'far';
    api.nodes.far = 'gpu2';
    current.set('far');
    const nodes = (message: string) => ({
      ...status([client()]),
      nodes: [{ name: 'gpu2', message }]
    });
    await given.snapshot(nodes('The node gpu2 does not answer.'));
    await flushPromises();
    expect(model.text).toBe('GPU: on gpu2');
    await given.snapshot(nodes(''));
    expect(model.text).toBe('GPU: not shared');
  });

  it('shows an outage of the host beside the nodes', async () => {
    current.set('kernel');
    await given.snapshot({
      ...status([client({ id: 'far', node: 'gpu2' })]),
      config: null,
      nodes: [
        { name: '', message: 'The coordinator does not answer.' },
        { name: 'gpu2', message: '' }
      ]
    });
    await flushPromises();
    expect(model.text).toBe('GPU: sharing service unavailable');
  });

  it('shows the state of a kernel on a node like any other', async () => {
    api.clients.far = 'far';
    api.nodes.far = 'gpu2';
    current.set('kernel');
    const waits = { phase: 'waiting', queue_position: 1, expected_wait: 40 };
    await given.snapshot({
      ...status(
        [client(), client({ id: 'far', node: 'gpu2', ...waits })],
        [
          device({ grants: [grant()] }),
          device({
            node: 'gpu2',
            grants: [grant({ client: 'other' })],
            queue: ['far']
          })
        ]
      ),
      nodes: [{ name: 'gpu2', message: '' }]
    });
    current.set('far');
    await flushPromises();
    expect(model.phase).toBe('waiting');
    expect(model.text).toMatch(/^GPU: #1 in queue · .* · on gpu2$/);
    expect(model.details).toContainEqual({ label: 'Node', value: 'gpu2' });
    const devices = model.details.filter(({ label }) => label === 'Test GPU');
    expect(devices).toHaveLength(1);
    expect(devices[0].value).toBe('another client running');
  });

  it('is polled by GET at the interval of the setting where no socket opens', async () => {
    api.answer = status([client({ phase: 'suspended' })]);
    given.sharing.pollInterval = 40;
    current.set('kernel');
    api.openEvents = () => {
      throw new Error('no socket');
    };
    api.socket.break();
    await flushPromises();
    expect(model.text).toBe('GPU: suspended');
    expect(api.statusCalls).toBe(1);
    await pass(39);
    expect(api.statusCalls).toBe(1);
    await pass(2);
    expect(api.statusCalls).toBe(2);
  });

  it('changes when the user opens another notebook', async () => {
    api.clients.second = 'other';
    await show([client(), client({ id: 'other', phase: 'suspended' })]);
    expect(model.text).toBe('GPU: idle');
    current.set('second');
    await flushPromises();
    expect(model.text).toBe('GPU: suspended');
    current.set('kernel');
    expect(model.text).toBe('GPU: idle');
  });

  it('is found after a late registration', async () => {
    api.clients = {};
    await show([]);
    expect(model.text).toBe('GPU: not shared');
    api.clients = { kernel: 'mine' };
    await given.clients([client()]);
    expect(model.text).toBe('GPU: idle');
  });

  it('is found when a restart makes another client of it', async () => {
    await show([client()]);
    api.clients = { kernel: 'again' };
    current.restarting.emit('kernel');
    await flushPromises();
    await given.clients([client({ id: 'again', phase: 'suspended' })]);
    expect(model.text).toBe('GPU: suspended');
  });

  it('is requested again later, not at every snapshot, after a failure', async () => {
    api.clients = { kernel: new ApiError('busy', 503) };
    await show([client()]);
    for (let i = 0; i < 20; i++) {
      await given.clients([client()]);
    }
    // One request at first, and one because the first snapshot brought new
    // clients.
    expect(api.kernelCalls.length).toBeLessThanOrEqual(2);
    expect(model.isShown).toBe(false);
    api.clients = { kernel: 'mine' };
    await pass(5);
    expect(model.text).toBe('GPU: idle');
  });

  it('stays unchanged while the page is hidden, and is updated afterwards', async () => {
    await snapshot(runningStatus(30));
    given.visibility.set(true);
    changes = 0;
    expect(jest.getTimerCount()).toBe(0);
    current.set('second');
    current.set('kernel');
    await pass(10);
    expect(changes).toBe(0);
    expect(api.kernelCalls).toEqual(['kernel']);
    given.visibility.set(false);
    expect(model.text).toBe('GPU: running · up to 20 s left');
    expect(api.sockets).toHaveLength(2);
  });

  it('needs no connection when the user switches the item off', async () => {
    await show([client()]);
    model.isEnabled = false;
    expect(model.isShown).toBe(false);
    expect(api.socket.isClosed).toBe(true);
    model.isEnabled = true;
    expect(model.text).toBe('GPU: idle');
    expect(api.sockets).toHaveLength(2);
  });

  it('needs no timer and no connection after the disposal of the model', async () => {
    await snapshot(runningStatus(30));
    model.dispose();
    expect(jest.getTimerCount()).toBe(0);
    expect(api.socket.isClosed).toBe(true);
    changes = 0;
    current.set('second');
    await pass(60);
    expect(changes).toBe(0);
  });
});
