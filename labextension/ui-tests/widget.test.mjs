/**
 * Tests of the ipywidgets view: updates, buttons, a second page and the end.
 */
import assert from 'node:assert/strict';

import { assertAccessible } from './axe.mjs';
import { client } from './jupyter.mjs';
import { shows } from './lab.mjs';
import { Stage } from './stage.mjs';

const PATH = 'widget.ipynb';

const SOURCES = [
  `\
import threading
from pathlib import Path
from jupyter_gpushare.demo.gpu import Gpu
from jupyter_gpushare.widgets import GpuShareView
gpu = Gpu()
x = gpu.full(10**7, 1.0)
GpuShareView()`,
  `\
while not Path("${PATH}.end").exists():
    gpu.work(x, 0.05, launch=0.005)
print("work done")`,
  `print(sum(t.name == "gpushare-view" for t in threading.enumerate()), "follow")`
];

let lab;
let notebook;
let view;

const stage = new Stage('widget');

stage.setUp(async () => {
  notebook = await stage.notebook(PATH, { sources: SOURCES });
  lab = await stage.open(`lab/tree/${PATH}?reset`);
  await lab.notebook(PATH);
  view = lab.output(0);
});

stage.test('the view stays live while a cell runs', async () => {
  await lab.runsTo(0, /GPU: \w/);
  await lab.run(1);
  await shows(view, 'A cell is running');
  await shows(view, /GPU: running/);
  await lab.screenshots('widget', view);
  await notebook.finish();
  await lab.worked();
  await view.getByRole('button', { name: 'Hold the GPU' }).click();
  await shows(view, /held for \d/);
});

stage.test('the quota form has labels, checks and changes', async () => {
  await view.getByText('Quota', { exact: true }).last().click();
  await view.getByLabel('share').fill('3');
  await view.getByLabel('share').press('Enter');
  await shows(view.getByRole('alert'), 'from 0 to 1');
  await view.getByLabel('share').fill('30%');
  await view.getByLabel('class').selectOption('offline');
  await assertAccessible(lab, 'widget-quota', view);
  await view.getByRole('button', { name: 'Change GPU Quota' }).click();
  const changed = await client(PATH, one => one.quota.share === 0.3);
  assert.equal(changed.quota.service, 'offline');
});

stage.test('a view that is not on the page has no connection', async () => {
  await lab.runsTo(0, /GPU: \w/);
  await lab.runsTo(2, /^1 follow/);
  await lab.command('notebook:clear-all-cell-outputs');
  await lab.runsTo(2, /^0 follow/);
});

stage.test(
  'a page that is loaded again updates its own view only',
  async () => {
    await lab.runsTo(0, /GPU: \w/);
    await lab.runsTo(2, /^1 follow/);
    await lab.page.reload();
    await lab.page.waitForFunction(() => globalThis.jupyterapp);
    await lab.ready(PATH);
    await lab.runsTo(0, /GPU: \w/);
    await lab.runsTo(2, /^1 follow/);
  }
);
