import { IdleNotices, noticeText } from '../model/idlenotices';
import type { SharingModel } from '../model/sharing';
import type { IClient } from '../protocol';
import { client, status, type FakeApi } from './fakes';
import { sharedKernel, trans } from './given';

const EVICTED = { evicted_by_policy: true, idle_seconds: 1810 };
const SUSPENDED = {
  ...EVICTED,
  phase: 'suspended',
  suspended: true,
  suspended_by_policy: true,
  idle_seconds: 7300
};

describe('kernels that nobody uses', () => {
  let api: FakeApi;
  let sharing: SharingModel;
  let notices: IdleNotices;
  /** What has been told, and the ids of those for whom it is over. */
  let told: string[];

  beforeEach(() => {
    ({ api, sharing } = sharedKernel());
    sharing.watch();
    notices = new IdleNotices(sharing);
    told = [];
    notices.happened.connect((_, one) => told.push(noticeText(one, trans)));
    notices.over.connect((_, id) => told.push(id));
  });

  afterEach(() => {
    notices.dispose();
    sharing.dispose();
  });

  const show = (...clients: Partial<IClient>[]) =>
    api.socket.sendSnapshot(
      status(
        clients.map(one => client({ own: true, idle_seconds: null, ...one }))
      )
    );

  it('are told of once when their memory leaves, and once when suspended', () => {
    show({});
    show({ idle_seconds: 60 });
    show(EVICTED);
    show({ ...EVICTED, idle_seconds: 1900 });
    expect(told).toEqual([
      'train.ipynb has not been used for 30 min, so its memory has moved off the GPU. Nothing is lost: run a cell, and it comes back.'
    ]);
    show(SUSPENDED);
    show(SUSPENDED);
    expect(told.slice(1)).toEqual([
      'train.ipynb has not been used for 2 h 1 min and is therefore suspended, with no memory on the GPU. Nothing is lost: run a cell, and it goes on.'
    ]);
  });

  it('are used again, and told of anew the next time', () => {
    show({});
    show(EVICTED);
    show({ phase: 'running' });
    expect(told.slice(1)).toEqual(['mine']);
    show(EVICTED);
    expect(told).toHaveLength(3);
  });

  it('are no news to a page that finds them so', () => {
    show(EVICTED);
    expect(told).toEqual([]);
    show(SUSPENDED);
    expect(told).toHaveLength(1);
  });

  it('are no news to a coordinator that comes later', () => {
    show({});
    show(SUSPENDED);
    expect(told).toHaveLength(1);
    api.socket.send({ type: 'away', reason: 'unreachable', message: 'died' });
    show({ idle_seconds: 0 });
    show(SUSPENDED);
    expect(told.slice(1)).toEqual(['mine']);
    show();
    show(SUSPENDED);
    expect(told).toHaveLength(2);
  });

  it('are somebody else’s, programs, or suspended by a person: nothing to tell', () => {
    const kinds = [
      { own: false },
      { id: 'run:job@host' },
      { id: 'told', suspended_by_policy: false, evicted_by_policy: false }
    ];
    show(...kinds);
    show(...kinds.map(one => ({ ...SUSPENDED, ...one })));
    expect(told).toEqual([]);
  });

  it('are gone: nothing is left to tell', () => {
    show({});
    show(EVICTED);
    show();
    expect(told.slice(1)).toEqual(['mine']);
  });
});
