/** Tests of WaitModel and its view: text, progress, outages and the setting. */

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

const AWAY = { type: 'unavailable', reason: 'unreachable', message: '' };

describe('the text below a cell', () => {
  let given: Given;
  let model: WaitModel<string>;

  beforeEach(() => {
    given = new Given();
    given.sharing.watch();
    model = given.own(new WaitModel(given));
  });

  afterEach(() => given.dispose());

  it.each<[string, Partial<IClient>, Partial<IClient>, Partial<IGrant>]>([
    // The coordinator expects the turn to end before its deadline.
    [
      '#1, about 2 s (train.ipynb is running, up to 11 s left)',
      { queue_position: 1, expected_wait: 3 },
      {},
      {}
    ],
    [
      '#2, about 39 s (a notebook of bob is running, 11 s left)',
      {},
      { own: false, label: '', user: 'bob' },
      {}
    ],
    [
      '6 GiB of other.ipynb cannot leave the GPU',
      {
        expected_wait: null,
        wait_reason: '6 GiB of other.ipynb cannot leave the GPU'
      },
      {},
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
  ])('is "%s" for %j behind %j, %j', async (text, mine, other, turn) => {
    const theirs = { client: 'other', seconds_left: 12, ...turn };
    await given.show({ ...WAITS, ...mine }, other, grant(theirs));
    await pass(1.5);
    expect(model.state?.text).toBe(`Waiting for the GPU: ${text}`);
  });

  it('appears after a second, and counts down', async () => {
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

  it('disappears at the end of the wait, and with the cell', async () => {
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

  it('does not appear for a short wait', async () => {
    let changes = 0;
    model.changed.connect(() => changes++);
    await given.show(WAITS);
    await pass(0.8);
    await given.show({ phase: 'running' });
    await pass(5);
    expect(changes).toBe(0);
  });

  it('follows the running cell', async () => {
    await given.show(WAITS);
    await pass(2);
    given.runningCells.set('next');
    expect(model.state).toBeNull();
    await pass(1.1);
    expect(model.state?.cell).toBe('next');
  });

  it('appears at a cell of another page, by the ids that the kernel reports', async () => {
    given.runningCells.set(null);
    await given.show({ ...WAITS, cell_ids: ['of another page'] });
    await pass(1.5);
    expect(model.state?.cell).toBe('of another page');
    given.api.socket.send(AWAY);
    expect(model.state?.cell).toBe('of another page');
  });

  it('has no progress without an estimate, or after the estimate', async () => {
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

  it('uses the present turn for the progress of the next client', async () => {
    await given.show({ ...WAITS, queue_position: 1, expected_wait: 0 });
    await pass(3);
    expect(model.state?.text).not.toContain('about');
    expect(model.state?.fraction).toBeCloseTo(3 / 12, 1);
    await pass(10);
    expect(model.state?.fraction).toBeUndefined();
  });

  it('reports a suspension', async () => {
    await given.show({ phase: 'suspended', suspended: true });
    await pass(1.5);
    expect(model.state).toMatchObject({ isSuspended: true, client: 'mine' });
    expect(model.state?.text).toMatch(/resume/);
  });

  it('reports an outage of the service, and continues after the outage', async () => {
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

  it('reports no outage where the cell did not wait', async () => {
    await given.show({ phase: 'running' });
    await pass(2);
    given.api.socket.send(AWAY);
    await pass(2);
    expect(model.state).toBeNull();
  });

  it('has no progress behind an endless cell', async () => {
    let furthest = 0;
    for (let waited = 0; waited < 30; waited++) {
      // The coordinator estimates half of the elapsed turn of the other client.
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

  it('has the same seconds as the status item at any moment', async () => {
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

  it('is drawn in the cell, with a bar of the progress', async () => {
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

    // A notebook removes the children of its cells while the user scrolls.
    cell.replaceChildren();
    view.hide();
    view.show(cell, model.state!);
    expect(cell.contains(view.node)).toBe(true);
    view.dispose();
    expect(cell.childElementCount).toBe(0);
  });
});
