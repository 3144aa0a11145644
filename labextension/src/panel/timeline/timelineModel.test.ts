/** Tests of lanes, of their SVG paths, and of TimelineModel. */

import type { HistoryEvent } from '../../base/protocol';
import { SettingsModel } from '../../base/settings';
import type { HistoryModel } from '../../history/historyModel';
import { Lanes } from '../../history/lanes';
import { blockRanges } from './lanePaths';
import { TimelineModel } from './timelineModel';

function lanesOf(...entries: [at: number, what: HistoryEvent, id?: string][]) {
  const lanes = new Lanes();
  lanes.apply(
    entries.map(([at, what, client = 'a']) => ({ at, what, client }))
  );
  return lanes;
}

describe('Lanes', () => {
  it('make periods of entries, the last of which lasts', () => {
    const lanes = lanesOf(
      [1, 'waiting'],
      [3, 'running'],
      [3, 'cell_started'],
      [4, 'running'],
      [6, 'cell_ended'],
      [7, 'idle']
    );
    const lane = lanes.all.get('a')!;
    expect(lane.periods).toEqual([
      { state: 'waiting', from: 1, to: 3 },
      { state: 'running', from: 3, to: 7 },
      { state: 'idle', from: 7, to: null }
    ]);
    expect([lane.starts, lane.ends]).toEqual([[3], [6]]);
  });

  it('keep a client that has left until its periods are old', () => {
    const lanes = lanesOf([1, 'running'], [5, 'gone']);
    expect(lanes.all.get('a')).toMatchObject({
      isGone: true,
      periods: [{ state: 'running', from: 1, to: 5 }]
    });
    lanes.discardBefore(4);
    expect(lanes.all.has('a')).toBe(true);
    lanes.discardBefore(6);
    expect(lanes.all.has('a')).toBe(false);
  });

  it('stay bounded', () => {
    const lanes = new Lanes();
    for (let i = 0; i < 10000; i++) {
      lanes.apply([
        { at: i, client: 'a', what: i % 2 ? 'running' : 'idle' },
        { at: i, client: 'a', what: 'cell_started' },
        { at: i, client: `client ${i}`, what: 'gone' }
      ]);
    }
    expect(lanes.all.size).toBeLessThanOrEqual(200);
    const { periods, starts } = lanes.all.get('a')!;
    expect(periods.length).toBeLessThanOrEqual(2500);
    expect(starts.length).toBeLessThanOrEqual(2500);
    expect(periods[periods.length - 1].from).toBe(9999);
  });
});

describe('the drawing of a lane', () => {
  /** Columns of one second. */
  const drawn = (...entries: [number, HistoryEvent][]) =>
    blockRanges(lanesOf(...entries).all.get('a')!.periods, 100, 700).map(
      ({ state, from, to }) => [state, from, to]
    );

  it('has what lies within the span, and lasting periods up to its end', () => {
    expect(drawn([10, 'idle'], [90, 'waiting'], [120, 'running'])).toEqual([
      ['waiting', 0, 20],
      ['running', 20, 600]
    ]);
  });

  it('merges periods that are too short, by the state of most of the time', () => {
    const turns: [number, HistoryEvent][] = [];
    for (let i = 0; i < 1000; i++) {
      turns.push([110 + i * 0.01, 'waiting'], [110.003 + i * 0.01, 'running']);
    }
    expect(drawn(...turns, [120, 'idle'])).toEqual([
      ['running', 10, 20],
      ['idle', 20, 600]
    ]);
  });

  it('leaves the columns of a time without a state empty', () => {
    expect(
      drawn([100.5, 'running'], [300.25, 'gone'], [410.75, 'waiting'])
    ).toEqual([
      ['running', 0, 201],
      ['waiting', 310, 600]
    ]);
  });

  it('shows a single short turn with the width of one column', () => {
    expect(drawn([100, 'idle'], [150, 'running'], [150.01, 'idle'])).toEqual([
      ['idle', 0, 50],
      ['running', 50, 51],
      ['idle', 51, 600]
    ]);
  });
});

describe('TimelineModel', () => {
  const label = { id: 'a', number: 1, name: 'train.ipynb', isOwn: true };
  let past: { lanes: HistoryModel['lanes']; now: number };
  let settings: SettingsModel;
  let model: TimelineModel;

  beforeEach(() => {
    past = { lanes: new Map(), now: 1000 };
    settings = new SettingsModel();
    model = new TimelineModel(past as HistoryModel, settings);
  });

  it('distinguishes a held turn from a running one, and counts both as one turn', () => {
    past.lanes = lanesOf(
      [700, 'running'],
      [850, 'held'],
      [880, 'running'],
      [910, 'held']
    ).all;
    model.update([{ label, phase: 'running' }]);
    const [lane] = model.view!.lanes;
    expect(lane.summary).toMatch(
      /^Now held\. .*: running 60 %, held 40 %, waiting 0 %, 1 turn, /
    );
    expect(model.describe('a', 860)).toMatch(/^train\.ipynb: held at .*30 s$/);
    const paths = new Map(lane.paths);
    const shape = (path = '') => new Set(path.match(/v[\d.]+/g));
    expect(shape(paths.get('held'))).not.toEqual(shape(paths.get('running')));
  });

  it('gives a client without history one endless period', () => {
    model.update([{ label, phase: 'idle' }]);
    expect(model.view!.lanes[0].summary).toMatch(/^Now idle\. .*0 turns/);
    expect(model.describe('a', 900)).toBe('train.ipynb: idle for a long time');
  });

  it('counts a running cell without a known start', () => {
    past.lanes = lanesOf([990, 'running']).all;
    model.update([{ label, phase: 'running', cells: 1 }]);
    expect(model.view!.lanes[0].summary).toMatch(/ 1 cell\.$/);
    past.lanes = lanesOf(
      [300, 'cell_started'],
      [990, 'running'],
      [995, 'cell_ended'],
      [996, 'cell_started']
    ).all;
    model.update([{ label, phase: 'running', cells: 1 }]);
    expect(model.view!.lanes[0].summary).toMatch(/ 2 cells\.$/);
  });

  it('shows the minutes of the last choice', () => {
    const kept: unknown[] = [];
    settings.keep = (name, value) => kept.push([name, value]);
    settings.update({ timelineMinutes: 10 });
    expect(model.span).toBe(600);
    settings.update({ timelineMinutes: 2 });
    expect(model.span).toBe(120);
    expect(kept).toEqual([]);
    model.span = 300;
    expect(kept).toEqual([['timelineMinutes', 5]]);
  });

  it('stands still while paused, and then continues at the present time', () => {
    past.lanes = lanesOf([990, 'running']).all;
    model.update([{ label, phase: 'running' }]);
    model.isPaused = true;
    past.now = 1030;
    model.update();
    expect(model.view).toMatchObject({ now: 1000, isPaused: true });
    model.isPaused = false;
    expect(model.view).toMatchObject({ now: 1030, isPaused: false });
  });
});
