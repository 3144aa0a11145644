import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { DEFAULTS, SettingsModel } from '../model/settings';
import { SharingModel } from '../model/sharing';
import { client, FakeApi, FakeVisibility, settle, status } from './fakes';

describe('the settings', () => {
  it('has the defaults of the schema, and all of its settings', () => {
    const file = join(__dirname, '../../schema/plugin.json');
    const { properties } = JSON.parse(readFileSync(file, 'utf8'));
    for (const [name, value] of Object.entries(DEFAULTS)) {
      expect([name, properties[name]?.default]).toEqual([name, value]);
    }
  });

  it('tells of changes, and only of changes', () => {
    const model = new SettingsModel();
    let changes = 0;
    model.changed.connect(() => changes++);
    model.update({ showWaiting: true });
    expect(changes).toBe(0);
    model.update({ showWaiting: false, somethingElse: 1 });
    expect(changes).toBe(1);
    expect(model.values.showWaiting).toBe(false);
    expect(model.values.showStatusItem).toBe(true);
  });

  it('ignores what is of another type', () => {
    const model = new SettingsModel();
    model.update({ notifyAfterWait: 'soon' });
    expect(model.values.notifyAfterWait).toBe(DEFAULTS.notifyAfterWait);
  });
});

describe('the refresh interval', () => {
  beforeEach(() => jest.useFakeTimers());
  afterEach(() => jest.useRealTimers());

  it('is that between two requests where no socket opens', async () => {
    const api = new FakeApi();
    api.answer = status([client()]);
    const model = new SharingModel({ api, visibility: new FakeVisibility() });
    model.pollInterval = 40;
    model.watch();
    api.openEvents = () => {
      throw new Error('no socket');
    };
    api.socket.break();
    await settle();
    expect(api.statusCalls).toBe(1);
    await jest.advanceTimersByTimeAsync(39_000);
    expect(api.statusCalls).toBe(1);
    await jest.advanceTimersByTimeAsync(2_000);
    expect(api.statusCalls).toBe(2);
    model.dispose();
  });
});
