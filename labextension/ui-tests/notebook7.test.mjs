/**
 * Tests of the extension in Notebook 7, which has no status bar and one
 * notebook on each page.
 */
import assert from 'node:assert/strict';

import { client, setTurns } from './jupyter.mjs';
import { shows } from './lab.mjs';
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
  await setTurns(600);
});

stage.test('chip and waiting line follow the cells', async () => {
  const [one, two] = stage.labs;
  await shows(two.chip, /^GPU: idle/);
  await two.run(1);
  await shows(two.chip, /^GPU: running/);
  await client(TWO, ({ phase }) => phase === 'running');
  await one.run(1);
  await shows(one.chip, /^GPU: #1 in queue/);
  const line = one.cells.nth(1).getByText(/^Waiting for the GPU: #1/);
  await line.waitFor();
  await one.screenshots('notebook7-waiting');
  await stage.notebooks[1].finish();
  await shows(one.chip, /^GPU: running/);
  await line.waitFor({ state: 'detached' });
});

stage.test("the panel opens from the chip's menu", async () => {
  const [one, two] = stage.labs;
  const panel = new Panel(one);
  await one.chip.click();
  await one.page.getByRole('menuitem', { name: 'Show GPU Sharing' }).click();
  await shows(panel.row(ONE), 'Running');
  await shows(panel.row(TWO), 'Idle');
  await one.screenshots('notebook7-panel');
  await stage.notebooks[0].finish();
  await shows(panel.row(ONE), 'Idle');
  assert.deepEqual([...one.faults, ...two.faults], []);
});
