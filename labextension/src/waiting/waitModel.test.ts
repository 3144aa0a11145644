import type { IClient, IGrant } from '../base/protocol';
import { formatDuration } from '../base/units';
import type { IClientView } from '../sharing/sharingModel';
import { grant } from '../testing/fakes';
import { Given, pass } from '../testing/given';
import { WaitingView } from './waitingView';
import { WaitModel } from './waitModel';

const WAITS: Partial<IClient> = {
  phase: 'waiting',
  queue_position: 2,
  expected_wait: 40
};

const AWAY = { type: 'away', reason: 'unreachable', message: '' };

describe('what stands under a cell', () => {
  let given: Given;
  let model: WaitModel<string>;

  beforeEach(() => {
    given = new Given();
    given.sharing.watch();
    model = given.own(new WaitModel(given));
  });

  afterEach(() => given.dispose());

  it.each<[string, Partial<IClient>, Partial<IClient>, Partial<IGrant>]>([
    // A turn is expected to end before its deadline.
    [
      '#1, about 2 s (train.ipynb is running, up to 11 s left)',
      { queue_position: 1, expected_wait: 3 },
      {},
      {}
    ],
    [
      '#2, about 39 s (a notebook of bob is running, 11 s left)',
      {},
      { own: false, label: '', tenant: 'bob' },
      {}
    ],
    [
      '#2, about 39 s (a.ipynb is running, 11 s left)',
      {},
      { label: '/home/ada/my work/a.ipynb' },
      {}
    ],
    [
      '#2, about 39 s (train.ipynb holds the GPU, up to 4 min 59 s left)',
      {},
      {},
      { held: true, seconds_left: 300 }
    ]
  ])('reads "%s" for %j behind %j, %j', async (text, mine, other, turn) => {
    const theirs = { client: 'other', seconds_left: 12, ...turn };
    await given.show({ ...WAITS, ...mine }, other, grant(theirs));
    await pass(1.5);
    expect(model.state?.text).toBe(`Waiting for the GPU: ${text}`);
  });

  it('says after a second what it waits for, and counts down', async () => {
    await given.show(WAITS);
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
    await given.show(WAITS);
    await pass(2);
    expect(model.state?.cell).toBe('cell');
    await given.show({ phase: 'running' });
    expect(model.state).toBeNull();
    await given.show(WAITS);
    await pass(2);
    expect(model.state).not.toBeNull();
    given.runningCells.set(null);
    expect(model.state).toBeNull();
  });

  it('shows no wait that is short', async () => {
    let changes = 0;
    model.changed.connect(() => changes++);
    await given.show(WAITS);
    await pass(0.8);
    await given.show({ phase: 'running' });
    await pass(5);
    expect(changes).toBe(0);
  });

  it('moves on with the cells', async () => {
    await given.show(WAITS);
    await pass(2);
    given.runningCells.set('next');
    expect(model.state).toBeNull();
    await pass(1.1);
    expect(model.state?.cell).toBe('next');
  });

  it('finds a cell that another page has sent by what the kernel says', async () => {
    given.runningCells.set(null);
    await given.show({ ...WAITS, cell_ids: ['of another page'] });
    await pass(1.5);
    expect(model.state?.cell).toBe('of another page');
    given.api.socket.send(AWAY);
    expect(model.state?.cell).toBe('of another page');
  });

  it('promises nothing when nothing is expected, or no more', async () => {
    await given.show({ ...WAITS, expected_wait: null });
    await pass(1.5);
    expect(model.state?.text).toMatch(/^Waiting for the GPU: #2 \(/);
    expect(model.state?.fraction).toBeUndefined();
    await given.show({ ...WAITS, expected_wait: 2 });
    expect(model.state?.fraction).toBeGreaterThan(0.3);
    await pass(3);
    expect(model.state?.text).not.toContain('about');
    expect(model.state?.fraction).toBeUndefined();
  });

  it('is over for the next one when the turn that runs is', async () => {
    await given.show({ ...WAITS, queue_position: 1, expected_wait: 0 });
    await pass(3);
    expect(model.state?.text).not.toContain('about');
    expect(model.state?.fraction).toBeCloseTo(3 / 12, 1);
    await pass(10);
    expect(model.state?.fraction).toBeUndefined();
  });

  it('says that it is suspended', async () => {
    await given.show({ phase: 'suspended', suspended: true });
    await pass(1.5);
    expect(model.state).toMatchObject({ isSuspended: true, client: 'mine' });
    expect(model.state?.text).toMatch(/resume/);
  });

  it('says that nobody can tell, and goes on when somebody can', async () => {
    await given.show(WAITS);
    await pass(2);
    given.api.socket.send(AWAY);
    expect(model.state?.text).toMatch(
      /waiting .* sharing service became unavailable/
    );
    expect(model.state?.fraction).toBeUndefined();
    await pass(5);
    await given.show(WAITS);
    expect(model.state?.text).toMatch(/^Waiting for the GPU: #2/);

    given.api.socket.send(AWAY);
    given.runningCells.set('next');
    expect(model.state).toBeNull();
  });

  it('says nothing of the absence where it did not wait', async () => {
    await given.show({ phase: 'running' });
    await pass(2);
    given.api.socket.send(AWAY);
    await pass(2);
    expect(model.state).toBeNull();
  });

  it('promises nothing behind a cell that goes on and on', async () => {
    let furthest = 0;
    for (let waited = 0; waited < 30; waited++) {
      // Half of what the other's turn has lasted, as the coordinator has it.
      const expected_wait = Math.max(6 - waited, waited / 2);
      await given.show({ ...WAITS, expected_wait });
      await pass(1);
      const { fraction = 1 } = model.state ?? {};
      expect(fraction).toBeGreaterThanOrEqual(furthest);
      furthest = model.state?.fraction ?? furthest;
    }
    expect(model.state?.fraction).toBeUndefined();
    expect(model.state?.text).toMatch(
      /^Waiting for the GPU: #2, longer than expected \(train.* up to 11 s left\)/
    );
    expect(given.sharing.status?.clients[0].expected_wait).toBeNull();

    await given.show({ phase: 'running' });
    await given.show({ ...WAITS, expected_wait: 60 });
    await pass(1.1);
    expect(model.state?.text).toContain('about 59 s');
  });

  it('reads the same seconds as the status item at any moment', async () => {
    const { sharing } = given;
    await given.show({ ...WAITS, expected_wait: 9.3 });
    await pass(1.05); // The other samples are not at a whole second either.
    for (let step = 0; step < 40; step++) {
      const { expectedWait } = sharing.view('kernel') as IClientView;
      const read = formatDuration(expectedWait!);
      expect(model.state?.text).toContain(`about ${read} (`);
      await pass(0.1);
    }
  });

  it('can be switched off and on', async () => {
    await given.show(WAITS);
    await pass(2);
    model.isEnabled = false;
    expect(model.state).toBeNull();
    model.isEnabled = true;
    await pass(1.1);
    expect(model.state).not.toBeNull();
  });

  it('is drawn in the cell, with a bar that tells what is known', async () => {
    const resumed: string[] = [];
    const view = new WaitingView(id => resumed.push(id));
    const cell = document.createElement('div');
    await given.show(WAITS);
    await pass(10);
    view.show(cell, model.state!);
    const bar = cell.querySelector('[role=progressbar]')!;
    expect(cell.textContent).toContain('Waiting for the GPU: #2');
    expect(bar.getAttribute('aria-valuenow')).toBe('25');
    expect(bar.getAttribute('aria-label')).not.toBe('');
    expect(view.node.querySelector('button')!.hidden).toBe(true);

    await given.show({ ...WAITS, expected_wait: null });
    view.show(cell, model.state!);
    expect(bar.hasAttribute('aria-valuenow')).toBe(false);

    await given.show({ phase: 'suspended', suspended: true });
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
