import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { ApiError } from '../api';
import { WaitingView } from '../components/waiting';
import { DrawsTeller } from '../model/draws';
import { LongWaits } from '../model/longwaits';
import { SharingModel } from '../model/sharing';
import { WaitModel, type IRuns } from '../model/waiting';
import type { IClient, IStatus } from '../protocol';
import {
  client,
  device,
  FakeApi,
  FakeCurrent,
  FakeVisibility,
  settle,
  status
} from './fakes';

const trans = nullTranslator.load('');

class FakeRuns implements IRuns<string> {
  cell: string | null = 'cell';
  readonly changed = new Signal<this, void>(this);

  first(): string | null {
    return this.cell;
  }

  set(cell: string | null): void {
    this.cell = cell;
    this.changed.emit();
  }
}

let api: FakeApi;
let kernel: FakeCurrent;
let runs: FakeRuns;
let visibility: FakeVisibility;
let sharing: SharingModel;
const clock = () => Date.now() / 1000;
const pass = (seconds: number) => jest.advanceTimersByTimeAsync(seconds * 1000);

beforeEach(() => {
  jest.useFakeTimers();
  api = new FakeApi();
  api.clients = { kernel: 'mine' };
  kernel = new FakeCurrent();
  kernel.kernelId = 'kernel';
  runs = new FakeRuns();
  visibility = new FakeVisibility();
  sharing = new SharingModel({ api, visibility, clock });
  sharing.watch();
});

afterEach(() => {
  sharing.dispose();
  jest.useRealTimers();
});

async function show(
  mine: Partial<IClient>,
  other: Partial<IClient> = {},
  more: Partial<IStatus> = {}
): Promise<void> {
  const grant = {
    client: 'other',
    epoch: 1,
    held_seconds: 1,
    seconds_left: 12
  };
  const clients = [client(mine), client({ id: 'other', ...other })];
  const all = status(clients, [device({ grants: [grant] })]);
  api.socket.sendSnapshot({ ...all, ...more });
  sharing.view('kernel');
  await settle();
}

const WAITS: Partial<IClient> = {
  phase: 'waiting',
  queue_position: 2,
  expected_wait: 40
};

describe('what stands under a cell', () => {
  let model: WaitModel<string>;

  beforeEach(() => {
    const options = { sharing, kernel, runs, visibility, trans, clock };
    model = new WaitModel(options);
  });

  afterEach(() => model.dispose());

  it('says that a turn is expected to end before its deadline', async () => {
    await show({ ...WAITS, queue_position: 1, expected_wait: 3 });
    await pass(1.5);
    expect(model.state?.text).toBe(
      'Waiting for the GPU: #1, about 2 s (train.ipynb is running, up to 11 s left)'
    );
  });

  it('says after a second what it waits for, and counts down', async () => {
    await show(WAITS);
    await pass(0.9);
    expect(model.state).toBeNull();
    await pass(0.2);
    expect(model.state?.text).toBe(
      'Waiting for the GPU: #2, about 39 s (train.ipynb is running, 11 s left)'
    );
    expect(model.state?.plain).toBe('Waiting for the GPU: #2');
    expect(model.state?.fraction).toBeCloseTo(1 / 40, 2);
    await pass(10);
    expect(model.state?.text).toMatch(/about 29 s .* 1 s left/);
    expect(model.state?.fraction).toBeCloseTo(11 / 40, 1);
  });

  it('is gone when the wait ends, and when the cell does', async () => {
    await show(WAITS);
    await pass(2);
    expect(model.state?.cell).toBe('cell');
    await show({ phase: 'running' });
    expect(model.state).toBeNull();
    await show(WAITS);
    await pass(2);
    expect(model.state).not.toBeNull();
    runs.set(null);
    expect(model.state).toBeNull();
  });

  it('shows no wait that is short', async () => {
    let changes = 0;
    model.changed.connect(() => changes++);
    await show(WAITS);
    await pass(0.8);
    await show({ phase: 'running' });
    await pass(5);
    expect(changes).toBe(0);
  });

  it('moves on with the cells', async () => {
    await show(WAITS);
    await pass(2);
    runs.set('next');
    expect(model.state).toBeNull();
    await pass(1.1);
    expect(model.state?.cell).toBe('next');
  });

  it('promises nothing when nothing is expected, or no more', async () => {
    await show({ ...WAITS, expected_wait: null });
    await pass(1.5);
    expect(model.state?.text).toMatch(/^Waiting for the GPU: #2 \(/);
    expect(model.state?.fraction).toBeUndefined();
    await show({ ...WAITS, expected_wait: 2 });
    expect(model.state?.fraction).toBeGreaterThan(0.3);
    await pass(3);
    expect(model.state?.text).not.toContain('about');
    expect(model.state?.fraction).toBeUndefined();
  });

  it('is over for the next one when the turn that runs is', async () => {
    await show({ ...WAITS, queue_position: 1, expected_wait: 0 });
    await pass(3);
    expect(model.state?.text).not.toContain('about');
    expect(model.state?.fraction).toBeCloseTo(3 / 12, 1);
    await pass(10);
    expect(model.state?.fraction).toBeUndefined();
  });

  it("tells no more of another user's notebook than whose it is", async () => {
    await show(WAITS, { own: false, label: '', tenant: 'bob' });
    await pass(1.5);
    expect(model.state?.text).toMatch(/\(a notebook of bob is running, /);
  });

  it('names a notebook without its folder', async () => {
    await show(WAITS, { own: true, label: '/home/ada/my work/a.ipynb' });
    await pass(1.5);
    expect(model.state?.text).toContain('(a.ipynb is running');
  });

  it('says that it is suspended', async () => {
    await show({ phase: 'suspended', suspended: true });
    await pass(1.5);
    expect(model.state).toMatchObject({ isSuspended: true, client: 'mine' });
    expect(model.state?.text).toMatch(/resume/);
  });

  it('says nothing while nobody knows', async () => {
    await show(WAITS);
    await pass(2);
    api.socket.send({ type: 'away', reason: 'unreachable', message: '' });
    expect(model.state).toBeNull();
  });

  it('can be switched off and on', async () => {
    await show(WAITS);
    await pass(2);
    model.isEnabled = false;
    expect(model.state).toBeNull();
    model.isEnabled = true;
    await pass(1.1);
    expect(model.state).not.toBeNull();
  });

  it('is drawn in the cell, with a bar that tells what is known', async () => {
    const resumed: string[] = [];
    const view = new WaitingView(trans, id => resumed.push(id));
    const cell = document.createElement('div');
    await show(WAITS);
    await pass(10);
    view.show(cell, model.state!);
    const bar = cell.querySelector('[role=progressbar]')!;
    expect(cell.textContent).toContain('Waiting for the GPU: #2');
    expect(bar.getAttribute('aria-valuenow')).toBe('25');
    expect(bar.getAttribute('aria-label')).not.toBe('');
    expect(view.node.querySelector('button')!.hidden).toBe(true);

    await show({ ...WAITS, expected_wait: null });
    view.show(cell, model.state!);
    expect(bar.hasAttribute('aria-valuenow')).toBe(false);

    await show({ phase: 'suspended', suspended: true });
    view.show(cell, model.state!);
    expect((bar as HTMLElement).hidden).toBe(true);
    view.node.querySelector('button')!.click();
    expect(resumed).toEqual(['mine']);

    // A notebook that is scrolled takes its cells' children away.
    cell.replaceChildren();
    view.hide();
    view.show(cell, model.state!);
    expect(cell.contains(view.node)).toBe(true);
    view.dispose();
    expect(cell.childElementCount).toBe(0);
  });
});

describe('what the server is told of who draws', () => {
  let session: string | undefined;
  let teller: DrawsTeller;
  const told = () => api.changes.map(([, ...rest]) => rest);

  beforeEach(() => {
    session = 'page-1';
    teller = new DrawsTeller({
      api,
      sharing,
      kernel,
      session: () => session
    });
  });

  afterEach(() => teller.dispose());

  it('is told once of each connection, and again after a restart', async () => {
    await show({});
    await show({ phase: 'running' });
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
    await show({}, {}, { coordinator: { pid: 1 } });
    api.socket.send({ type: 'away', reason: 'unreachable', message: '' });
    await show({}, {}, { coordinator: { pid: 2 } });
    expect(told()).toHaveLength(2);
  });

  it('says nothing of kernels that are not shared, or switched off', async () => {
    kernel.kernelId = 'another';
    await show({});
    sharing.view('another');
    await settle();
    kernel.kernelId = 'kernel';
    teller.isEnabled = false;
    await show({});
    expect(told()).toEqual([]);
    teller.isEnabled = true;
    await settle();
    expect(told()).toHaveLength(1);
  });

  it('tries again if the server was not reached, not if it refused', async () => {
    api.refusal = new ApiError('no answer', 0);
    await show({});
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

describe('the end of a long wait', () => {
  let ends: LongWaits.IEnd[];
  let waits: LongWaits<string>;
  let shortest: number;
  let isInSight: boolean;

  beforeEach(() => {
    ends = [];
    shortest = 60;
    isInSight = false;
    waits = new LongWaits({
      sharing,
      kernel,
      runs,
      visibility,
      clock,
      isInSight: () => isInSight,
      shortest: () => shortest
    });
    waits.ended.connect((_, end) => ends.push(end));
  });

  afterEach(() => waits.dispose());

  const wait = async (seconds: number) => {
    await show({ phase: 'waiting', wait_seconds: 0 });
    await pass(seconds);
    await show({ phase: 'running', wait_seconds: 0 });
  };

  it('is told if it was long, and not else', async () => {
    await wait(59);
    expect(ends).toEqual([]);
    await wait(61);
    expect(ends).toHaveLength(1);
    expect(ends[0].seconds).toBeCloseTo(61);
    expect(ends[0].wasHidden).toBe(false);
  });

  it('is told once for each run of a cell', async () => {
    await wait(70);
    await wait(70);
    expect(ends).toHaveLength(1);
    runs.set(null);
    runs.set('cell');
    await wait(70);
    expect(ends).toHaveLength(2);
  });

  it('is told the first time that the user does not see it', async () => {
    isInSight = true;
    await wait(70);
    expect(ends).toEqual([]);
    isInSight = false;
    await wait(70);
    expect(ends).toHaveLength(1);
  });

  it('is never told if the user wants none', async () => {
    shortest = 0;
    await wait(1000);
    expect(ends).toEqual([]);
  });

  it('is told when the page is looked at again, as the coordinator counted', async () => {
    await show({ phase: 'waiting', wait_seconds: 5 });
    visibility.set(true);
    await pass(300);
    visibility.set(false);
    await show({ phase: 'idle', wait_seconds: 95 });
    expect(ends).toHaveLength(1);
    expect(ends[0]).toMatchObject({ seconds: 90, wasHidden: true });
  });

  it('is no end if the client was suspended', async () => {
    await show({ phase: 'waiting', wait_seconds: 0 });
    await pass(100);
    await show({ phase: 'suspended', suspended: true, wait_seconds: 0 });
    expect(ends).toEqual([]);
  });
});
