/** Tests of the timeline in the rendered side panel. */

import { history } from '../testing/fakes';
import { waitUntil } from '../testing/given';
import { busy, GivenPanel } from '../testing/givenPanel';

/** History of a client that has waited and now runs. */
const PAST = history({
  now: 1000,
  next: 3,
  entries: [
    { at: 940, client: 'mine', what: 'waiting' },
    { at: 970, client: 'mine', what: 'running' },
    { at: 970, client: 'mine', what: 'cell_started' }
  ]
});

describe('the timeline of the side panel', () => {
  let given: GivenPanel;

  beforeEach(() => {
    given = new GivenPanel();
    given.api.past = PAST;
  });

  afterEach(() => {
    given.dispose();
  });

  it('shows the span of the settings, and recomputes no lanes while hidden', async () => {
    await given.shows(busy(), 'Timeline');
    const spans: (number | undefined)[] = [];
    given.model.timeline.changed.connect(({ view }) => spans.push(view?.span));
    const choose = (minutes: number) => {
      spans.length = 0;
      given.settings.set('timelineMinutes', minutes);
      return spans;
    };
    expect(choose(10)).toEqual([600]);
    given.panel.hide();
    expect(choose(2)).toEqual([]);
    given.panel.show();
    expect(spans.pop()).toBe(120);
    given.model.dispose();
    expect(choose(5)).toEqual([]);
  });

  it('draws a lane for each client, describes the lane in words, and can be paused', async () => {
    await given.shows(busy(), 'Timeline');
    const lanes = given.findAll('.gpushare-Timeline-names li');
    expect(lanes[0].textContent).toContain(
      'Now running. In the last 5 min: running 10 %, waiting 10 %, 1 turn, 1 cell.'
    );
    expect(given.find('svg .gpushare-Lane-running')).not.toBeNull();
    const legend = given.find('.gpushare-Legend')!.textContent;
    expect(legend).toContain('turn ending');
    expect(legend).toContain('held');

    const pause = given.button('Pause')!;
    pause.click();
    await waitUntil(() => pause.textContent === 'Continue');
    pause.click();
    await waitUntil(() => pause.textContent === 'Pause');
  });

  it('describes periods by keyboard', async () => {
    await given.shows(busy(), 'Timeline');
    const chart = given.find('.gpushare-Timeline-window')!;
    const press = (key: string) =>
      chart.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
    const announced = () =>
      given.find('.gpushare-Timeline [role=status]')!.textContent!;
    press('ArrowDown');
    await waitUntil(() =>
      announced().startsWith('train.ipynb: running since ')
    );
    press('ArrowLeft');
    await waitUntil(() =>
      /^train\.ipynb: waiting at .* for 30 s$/.test(announced())
    );
    press('Escape');
    await waitUntil(() => announced() === '');
  });
});
