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

describe('kernels that nobody uses', () => {
  let given: Given;
  /** The texts of the notices, and the ids of clients whose notice is over. */
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

  it('are reported once when their memory leaves, and once when suspended', () => {
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

  it('are used again, and reported anew the next time', () => {
    show({});
    show(EVICTED);
    show({ phase: 'running' });
    expect(seen.slice(1)).toEqual(['mine']);
    show(EVICTED);
    expect(seen).toHaveLength(3);
  });

  it('are no news to a page that finds them so', () => {
    show(EVICTED);
    expect(seen).toEqual([]);
    show(SUSPENDED);
    expect(seen).toHaveLength(1);
  });

  it('are no news to a coordinator that comes later', () => {
    show({});
    show(SUSPENDED);
    expect(seen).toHaveLength(1);
    given.api.socket.send({
      type: 'away',
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

  it('are somebody else’s, programs, or suspended by a person: nothing to tell', () => {
    const kinds = [
      { own: false },
      { id: 'run:job@host' },
      { id: 'told', suspended_by_policy: false, evicted_by_policy: false }
    ];
    show(...kinds);
    show(...kinds.map(one => ({ ...SUSPENDED, ...one })));
    expect(seen).toEqual([]);
  });

  it('are gone: nothing is left to tell', () => {
    show({});
    show(EVICTED);
    show();
    expect(seen.slice(1)).toEqual(['mine']);
  });
});
