/**
 * Tests of notifications about evictions and suspensions by the idle policy.
 */

import type { IClient } from '../base/protocol';
import { client, status } from '../testing/fakes';
import { Given } from '../testing/given';
import { IdleNotifications, notificationText } from './idleNotifications';

const EVICTED = { evicted_by_policy: true, idle_seconds: 1810 };
const SUSPENDED = {
  ...EVICTED,
  phase: 'suspended',
  suspended: true,
  suspended_by_policy: true,
  idle_seconds: 7300
};

describe('unused kernels', () => {
  let given: Given;
  /**
   * Texts of raised notifications, and ids of clients whose notification was
   * cleared.
   */
  let seen: string[];

  beforeEach(() => {
    given = new Given();
    given.sharing.watch();
    const notices = given.own(new IdleNotifications(given.sharing));
    seen = [];
    notices.raised.connect((_, one) => seen.push(notificationText(one)));
    notices.cleared.connect((_, id) => seen.push(id));
  });

  afterEach(() => given.dispose());

  const show = (...clients: Partial<IClient>[]) =>
    given.api.socket.sendSnapshot(status(clients.map(one => client(one))));

  it('are reported once at the eviction, and once at the suspension', () => {
    show({});
    show({ idle_seconds: 60 });
    show(EVICTED);
    show({ ...EVICTED, idle_seconds: 1900 });
    expect(seen).toEqual([
      'train.ipynb has not been used for 30 min, so its memory has moved off the GPU. No data is lost. Run a cell to move the memory back.'
    ]);
    show(SUSPENDED);
    show(SUSPENDED);
    expect(seen.slice(1)).toEqual([
      'train.ipynb has not been used for 2 h 1 min and is now suspended, without memory on the GPU. No data is lost. Run a cell to resume it.'
    ]);
  });

  it('are reported again after a use', () => {
    show({});
    show(EVICTED);
    show({ phase: 'running' });
    expect(seen.slice(1)).toEqual(['mine']);
    show(EVICTED);
    expect(seen).toHaveLength(3);
  });

  it('are not reported if they were evicted before the page was loaded', () => {
    show(EVICTED);
    expect(seen).toEqual([]);
    show(SUSPENDED);
    expect(seen).toHaveLength(1);
  });

  it('are not reported again after a restart of the coordinator', () => {
    show({});
    show(SUSPENDED);
    expect(seen).toHaveLength(1);
    given.api.socket.send({
      type: 'unavailable',
      reason: 'unreachable',
      message: 'died'
    });
    show({ idle_seconds: 0 });
    show(SUSPENDED);
    expect(seen.slice(1)).toEqual(['mine']);
    show();
    show(SUSPENDED);
    expect(seen).toHaveLength(2);
  });

  it('are not reported for other users, for programs, and after a user’s suspend', () => {
    const kinds = [
      { own: false },
      { id: 'run:job@host' },
      { id: 'by-user', suspended_by_policy: false, evicted_by_policy: false }
    ];
    show(...kinds);
    show(...kinds.map(one => ({ ...SUSPENDED, ...one })));
    expect(seen).toEqual([]);
  });

  it('end their notifications when they leave', () => {
    show({});
    show(EVICTED);
    show();
    expect(seen.slice(1)).toEqual(['mine']);
  });
});
