/** The same extension in Notebook 7: no status bar, one notebook a page. */
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { client, skip, takeTurns } from './jupyter.mjs';
import { Panel } from './panel.mjs';
import { Stage } from './stage.mjs';

const ONE = 'one.ipynb';
const TWO = 'two.ipynb';

const stage = new Stage('notebook7');

stage.setUp(async () => {
  for (const path of [ONE, TWO]) {
    await stage.notebook(path);
    const page = await stage.open(`notebooks/${path}`);
    await page.ready(path);
    await page.runsTo(0, /ready/);
  }
  await takeTurns(600);
});

test('chip and waiting line follow the cells', { skip }, async () => {
  const [one, two] = stage.labs;
  await two.chip.filter({ hasText: /^GPU: idle/ }).waitFor();
  await two.run(1);
  await two.chip.filter({ hasText: /^GPU: running/ }).waitFor();
  await client(TWO, ({ phase }) => phase === 'running');
  await one.run(1);
  await one.chip.filter({ hasText: /^GPU: #1 in queue/ }).waitFor();
  const line = one.cells.nth(1).getByText(/^Waiting for the GPU: #1/);
  await line.waitFor();
  await one.screenshots('notebook7-waiting');
  await stage.notebooks[1].finish();
  await one.chip.filter({ hasText: /^GPU: running/ }).waitFor();
  await line.waitFor({ state: 'detached' });
});

test("the panel opens from the chip's menu", { skip }, async () => {
  const [one, two] = stage.labs;
  const panel = new Panel(one);
  await one.chip.click();
  await one.page.getByRole('menuitem', { name: 'Show GPU Sharing' }).click();
  await panel.row(ONE).filter({ hasText: 'Running' }).waitFor();
  await panel.row(TWO).filter({ hasText: 'Idle' }).waitFor();
  await one.screenshots('notebook7-panel');
  await stage.notebooks[0].finish();
  await panel.row(ONE).filter({ hasText: 'Idle' }).waitFor();
  assert.deepEqual([...one.faults, ...two.faults], []);
});
