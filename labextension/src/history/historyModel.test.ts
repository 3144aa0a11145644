/**
 * Tests of HistoryModel: times of its requests, parts, restarts and failures.
 */

import { ApiError } from '../server/api';
import {
  client,
  history,
  runningStatus,
  status,
  type FakeApi
} from '../testing/fakes';
import { Given, pass } from '../testing/given';
import { HistoryModel } from './historyModel';

describe('HistoryModel', () => {
  let given: Given;
  let api: FakeApi;
  let model: HistoryModel;

  beforeEach(() => {
    given = new Given();
    ({ api } = given);
    model = given.own(new HistoryModel(given));
    given.sharing.watch();
  });

  afterEach(() => given.dispose());

  const snapshot = () => api.socket.sendSnapshot(status([client()]));

  it('sends no request unless a view watches and the page is visible', async () => {
    snapshot();
    await pass(5);
    expect(api.historyCalls).toEqual([]);
    const watch = model.watch();
    await pass(0);
    expect(api.historyCalls).toEqual([0]);
    given.visibility.set(true);
    await pass(5);
    given.visibility.set(false);
    watch.dispose();
    await pass(5);
    expect(api.historyCalls).toEqual([0]);
  });

  it('requests new entries after a change of the state, at most once a second', async () => {
    api.past = history({ next: 7 });
    model.watch();
    snapshot();
    await pass(0);
    for (let i = 0; i < 9; i++) {
      snapshot();
      await pass(0.1);
    }
    expect(api.historyCalls).toEqual([0]);
    await pass(0.1);
    expect(api.historyCalls).toEqual([0, 7]);
    await pass(5);
    expect(api.historyCalls).toEqual([0, 7]);
  });

  it('continues with requests while a device is busy, for its utilisation', async () => {
    model.watch();
    api.past = history({ utilisation: { 'GPU-1': 0.5 } });
    api.socket.sendSnapshot(runningStatus(null));
    await pass(0);
    await pass(2);
    expect(api.historyCalls).toHaveLength(2);
    expect(model.utilisation).toEqual({ 'GPU-1': 0.5 });
  });

  it('requests further entries at once', async () => {
    api.pasts = [
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

  it('starts again with another coordinator', async () => {
    const entries = [{ at: 990, client: 'mine', what: 'running' as const }];
    api.pasts = [
      history({ next: 5, entries }),
      history({ run: 'second', next: 9, entries }),
      history({ run: 'second', now: 3, next: 1 })
    ];
    model.watch();
    snapshot();
    await pass(0);
    snapshot();
    await pass(1);
    expect(api.historyCalls).toEqual([0, 5, 0]);
    expect(model.lanes.size).toBe(0);
    expect(model.now).toBeCloseTo(3);
  });

  it('advances the coordinator’s clock, and discards old entries', async () => {
    api.pasts = [
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
    await pass(4);
    expect(model.now).toBeCloseTo(104);
    snapshot();
    await pass(0);
    expect(model.lanes.get('mine')!.periods).toEqual([
      { state: 'idle', from: 20, to: null }
    ]);
  });

  it('retries some time after a failure', async () => {
    api.past = new ApiError('busy', 503);
    model.watch();
    snapshot();
    await pass(0);
    snapshot();
    await pass(9);
    expect(api.historyCalls).toHaveLength(1);
    await pass(1);
    expect(api.historyCalls).toHaveLength(2);
  });
});
