/** The ipywidgets view: live beside a running cell, pressed, shown again, gone. */
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { assertAccessible } from './axe.mjs';
import { client, skip } from './jupyter.mjs';
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

test('a cell runs, and the view goes on', { skip }, async () => {
  await lab.runsTo(0, /GPU: \w/);
  await lab.run(1);
  await view.filter({ hasText: 'A cell is running' }).waitFor();
  await view.filter({ hasText: /GPU: running/ }).waitFor();
  await lab.screenshots('widget', view);
  await notebook.finish();
  await lab.output(1).filter({ hasText: 'work done' }).waitFor();
  await view.getByRole('button', { name: 'Hold the GPU' }).click();
  await view.filter({ hasText: /held for \d/ }).waitFor();
});

test('the quota form has labels, checks and changes', { skip }, async () => {
  await view.getByText('Quota', { exact: true }).last().click();
  await view.getByLabel('share').fill('3');
  await view.getByLabel('share').press('Enter');
  await view.getByRole('alert').filter({ hasText: 'from 0 to 1' }).waitFor();
  await view.getByLabel('share').fill('30%');
  await view.getByLabel('class').selectOption('offline');
  await assertAccessible(lab, 'widget-quota', view);
  await view.getByRole('button', { name: 'Change GPU Quota' }).click();
  const changed = await client(PATH, one => one.quota.share === 0.3);
  assert.equal(changed.quota.service, 'offline');
});

test('what is not on the page follows nothing', { skip }, async () => {
  await lab.runsTo(0, /GPU: \w/);
  await lab.runsTo(2, /^1 follow/);
  await lab.command('notebook:clear-all-cell-outputs');
  await lab.runsTo(2, /^0 follow/);
});

test(
  'a page that was loaded anew follows its own view only',
  { skip },
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
