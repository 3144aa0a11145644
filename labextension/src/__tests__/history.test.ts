import { ApiError } from '../api';
import { HistoryModel } from '../model/history';
import { SharingModel } from '../model/sharing';
import type { IHistory } from '../protocol';
import {
  client,
  FakeApi,
  FakeVisibility,
  history,
  runningStatus,
  settle,
  status
} from './fakes';

/** Answers one after the other; the last one again and again. */
class Past extends FakeApi {
  answers: IHistory[] = [];

  async history(after: number): Promise<IHistory> {
    if (this.answers.length > 0) {
      this.past = this.answers.shift()!;
    }
    return super.history(after);
  }
}

describe('HistoryModel', () => {
  let api: Past;
  let visibility: FakeVisibility;
  let sharing: SharingModel;
  let model: HistoryModel;

  beforeEach(() => {
    jest.useFakeTimers();
    api = new Past();
    visibility = new FakeVisibility();
    const clock = () => Date.now() / 1000;
    sharing = new SharingModel({ api, visibility, clock });
    model = new HistoryModel({ api, visibility, sharing, clock });
    sharing.watch();
  });

  afterEach(() => {
    model.dispose();
    sharing.dispose();
    jest.useRealTimers();
  });

  const snapshot = () => api.socket.sendSnapshot(status([client()]));

  async function pass(milliseconds: number): Promise<void> {
    jest.advanceTimersByTime(milliseconds);
    await settle();
  }

  it('asks nothing unless somebody watches, and the page is visible', async () => {
    snapshot();
    await pass(5000);
    expect(api.historyCalls).toEqual([]);
    const watch = model.watch();
    await pass(0);
    expect(api.historyCalls).toEqual([0]);
    visibility.set(true);
    await pass(5000);
    visibility.set(false);
    watch.dispose();
    await pass(5000);
    expect(api.historyCalls).toEqual([0]);
  });

  it('asks when the state has changed, at most once a second, for what is new', async () => {
    api.past = history({ next: 7 });
    model.watch();
    snapshot();
    await pass(0);
    for (let i = 0; i < 9; i++) {
      snapshot();
      await pass(100);
    }
    expect(api.historyCalls).toEqual([0]);
    await pass(100);
    expect(api.historyCalls).toEqual([0, 7]);
    await pass(5000);
    expect(api.historyCalls).toEqual([0, 7]);
  });

  it('goes on asking while a device works, for its utilisation', async () => {
    model.watch();
    api.past = history({ utilisation: { 'GPU-1': 0.5 } });
    api.socket.sendSnapshot(runningStatus(null));
    await pass(0);
    await pass(2000);
    expect(api.historyCalls).toHaveLength(2);
    expect(model.utilisation).toEqual({ 'GPU-1': 0.5 });
  });

  it('asks at once for more', async () => {
    api.answers = [
      history({ next: 1, more: true }),
      history({
        next: 2,
        entries: [{ at: 990, client: 'mine', what: 'running' }]
      })
    ];
    model.watch();
    snapshot();
    await pass(0);
    expect(api.historyCalls).toEqual([0, 1]);
    expect(model.lanes.get('mine')!.periods).toEqual([
      { state: 'running', from: 990, to: null }
    ]);
  });

  it('begins anew with another coordinator', async () => {
    const entries = [{ at: 990, client: 'mine', what: 'running' as const }];
    api.answers = [
      history({ next: 5, entries }),
      history({ run: 'second', next: 9, entries }),
      history({ run: 'second', now: 3, next: 1 })
    ];
    model.watch();
    snapshot();
    await pass(0);
    snapshot();
    await pass(1000);
    expect(api.historyCalls).toEqual([0, 5, 0]);
    expect(model.lanes.size).toBe(0);
    expect(model.now).toBeCloseTo(3);
  });

  it('counts the coordinator’s clock on, and forgets what is old', async () => {
    api.answers = [
      history({
        now: 100,
        entries: [
          { at: 10, client: 'mine', what: 'running' },
          { at: 20, client: 'mine', what: 'idle' }
        ]
      }),
      history({ now: 1900 })
    ];
    model.watch();
    snapshot();
    await pass(0);
    expect(model.now).toBeCloseTo(100);
    await pass(4000);
    expect(model.now).toBeCloseTo(104);
    snapshot();
    await pass(0);
    expect(model.lanes.get('mine')!.periods).toEqual([
      { state: 'idle', from: 20, to: null }
    ]);
  });

  it('tries again some time after a failure', async () => {
    api.past = new ApiError('busy', 503);
    model.watch();
    snapshot();
    await pass(0);
    snapshot();
    await pass(9000);
    expect(api.historyCalls).toHaveLength(1);
    await pass(1000);
    expect(api.historyCalls).toHaveLength(2);
  });
});
