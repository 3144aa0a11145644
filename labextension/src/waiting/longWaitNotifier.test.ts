/** Tests of notifications about the end of a long wait. */

import { Given, pass } from '../testing/given';
import { LongWaitNotifier } from './longWaitNotifier';

describe('the end of a long wait', () => {
  let given: Given;
  let ends: LongWaitNotifier.IEnd[];
  let minSeconds: number;
  let isInSight: boolean;

  beforeEach(() => {
    given = new Given();
    ends = [];
    minSeconds = 60;
    turns = 0;
    isInSight = false;
    given.sharing.watch();
    const waits = given.own(
      new LongWaitNotifier({
        ...given,
        isInSight: () => isInSight,
        minSeconds: () => minSeconds
      })
    );
    waits.ended.connect((_, end) => ends.push(end));
  });

  afterEach(() => given.dispose());

  let turns: number;

  const wait = async (seconds: number) => {
    await given.show({ phase: 'waiting', wait_seconds: 0, turn_count: turns });
    await pass(seconds);
    turns++;
    await given.show({ phase: 'running', wait_seconds: 0, turn_count: turns });
  };

  it('is reported if the wait was long, and only then', async () => {
    await wait(59);
    expect(ends).toEqual([]);
    await wait(61);
    expect(ends).toHaveLength(1);
    expect(ends[0].seconds).toBeCloseTo(61);
  });

  it('is reported once for each run of a cell', async () => {
    await wait(70);
    await wait(70);
    expect(ends).toHaveLength(1);
    given.runningCells.set(null);
    given.runningCells.set('cell');
    await wait(70);
    expect(ends).toHaveLength(2);
  });

  it('is reported the first time that the user does not see it', async () => {
    isInSight = true;
    await wait(70);
    expect(ends).toEqual([]);
    isInSight = false;
    await wait(70);
    expect(ends).toHaveLength(1);
  });

  it('is never reported if the setting is 0', async () => {
    minSeconds = 0;
    await wait(1000);
    expect(ends).toEqual([]);
  });

  it('is reported when the page is visible again, with the coordinator’s time', async () => {
    await given.show({ phase: 'waiting', wait_seconds: 5 });
    given.visibility.set(true);
    await pass(300);
    given.visibility.set(false);
    await given.show({ phase: 'idle', wait_seconds: 95, turn_count: 1 });
    expect(ends).toHaveLength(1);
    expect(ends[0]).toMatchObject({ seconds: 90 });
  });

  it.each(['idle', 'running'])(
    'is not reported for an interrupted wait of a kernel that is %s',
    async phase => {
      await given.show({ phase: 'waiting', wait_seconds: 0, turn_count: 3 });
      await pass(100);
      await given.show({ phase: 'idle', wait_seconds: 100, turn_count: 3 });
      await given.show({ phase, wait_seconds: 100, turn_count: 4 });
      expect(ends).toEqual([]);
    }
  );

  it('is not reported for a kernel that has restarted', async () => {
    await given.show({ phase: 'waiting', wait_seconds: 90, turn_count: 3 });
    await pass(100);
    await given.clients([]);
    await given.show({ phase: 'running', wait_seconds: 0, turn_count: 1 });
    expect(ends).toEqual([]);
  });

  it('is not reported for a client that was suspended', async () => {
    await given.show({ phase: 'waiting', wait_seconds: 0 });
    await pass(100);
    await given.show({ phase: 'suspended', suspended: true, wait_seconds: 0 });
    expect(ends).toEqual([]);
  });
});
