/** Tests of the user's settings: defaults equal to the schema, and changes. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { DEFAULTS, SettingsModel } from './settings';

describe('the settings', () => {
  it('have the names and the defaults of the schema', () => {
    const file = join(__dirname, '../../schema/plugin.json');
    const { properties } = JSON.parse(readFileSync(file, 'utf8'));
    expect(Object.keys(DEFAULTS).sort()).toEqual(
      Object.keys(properties).sort()
    );
    for (const [name, value] of Object.entries(DEFAULTS)) {
      expect([name, properties[name]?.default]).toEqual([name, value]);
    }
  });

  it('report changes to values of the same type only', () => {
    const model = new SettingsModel();
    let changes = 0;
    model.changed.connect(() => changes++);
    model.update({ showWaiting: true, notifyAfterWait: 'soon' });
    expect(changes).toBe(0);
    model.update({ showWaiting: false, somethingElse: 1 });
    expect(changes).toBe(1);
    expect(model.values.showWaiting).toBe(false);
    expect(model.values.showStatusItem).toBe(true);
  });
});
