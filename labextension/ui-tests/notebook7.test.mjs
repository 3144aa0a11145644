/** The same extension in Notebook 7: no status bar, one notebook a page. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { client, configure, Notebook, skip } from './jupyter.mjs';
import { Lab } from './lab.mjs';
import { Panel } from './panel.mjs';

const ONE = 'one.ipynb';
const TWO = 'two.ipynb';

const pages = [];
const notebooks = [];

before(async () => {
  if (skip) {
    return;
  }
  for (const path of [ONE, TWO]) {
    notebooks.push(await Notebook.create(path));
    const page = await Lab.open(`notebooks/${path}`);
    pages.push(page);
    await page.ready(path);
    await page.runsTo(0, /ready/);
  }
  await configure({
    policy: 'fcfs',
    sharing: 'exclusive',
    time_quantum: 600,
    idle_release: 0.25
  });
});

after(async () => {
  if (skip) {
    return;
  }
  await pages[0]?.screenshot('last-notebook7');
  for (const page of pages) {
    await page.close();
  }
  for (const notebook of notebooks) {
    await notebook.remove();
  }
});

test('chip and waiting line follow the cells', { skip }, async () => {
  const [one, two] = pages;
  await two.chip.filter({ hasText: /^GPU: idle/ }).waitFor();
  await two.run(1);
  await two.chip.filter({ hasText: /^GPU: running/ }).waitFor();
  await client(TWO, ({ phase }) => phase === 'running');
  await one.run(1);
  await one.chip.filter({ hasText: /^GPU: #1 in queue/ }).waitFor();
  const line = one.cells.nth(1).getByText(/^Waiting for the GPU: #1/);
  await line.waitFor();
  await one.screenshots('notebook7-waiting');
  await notebooks[1].finish();
  await one.chip.filter({ hasText: /^GPU: running/ }).waitFor();
  await line.waitFor({ state: 'detached' });
});

test("the panel opens from the chip's menu", { skip }, async () => {
  const [one] = pages;
  const panel = new Panel(one);
  await one.chip.click();
  await one.page.getByRole('menuitem', { name: 'Show GPU Sharing' }).click();
  await panel.row(ONE).filter({ hasText: 'Running' }).waitFor();
  await panel.row(TWO).filter({ hasText: 'Idle' }).waitFor();
  await one.screenshots('notebook7-panel');
  await notebooks[0].finish();
  await panel.row(ONE).filter({ hasText: 'Idle' }).waitFor();
  assert.deepEqual([...one.faults, ...pages[1].faults], []);
});
