/**
 * Pictures of README and docs, from a real JupyterLab on the simulated device.
 *
 * `make pictures` writes the pictures to docs/images.
 */
import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { client, Notebook, setTurns, waitUntil } from './jupyter.mjs';
import { Lab } from './lab.mjs';
import { Panel } from './panel.mjs';

const FOLDER = fileURLToPath(new URL('../../docs/images/', import.meta.url));
const setup = millions => `\
from jupyter_gpushare.demo.gpu import Gpu

gpu = Gpu()
x = gpu.full(${millions}_000_000, 1.0)`;
const TRAIN = `\
for epoch in range(1000):
    gpu.work(x, 0.5)`;
/** Millions of numbers, 1.25 times the simulated device's memory. */
const NOTEBOOKS = {
  'train.ipynb': 140,
  'explore.ipynb': 110,
  'infer.ipynb': 85
};
const NAMES = Object.keys(NOTEBOOKS);

mkdirSync(FOLDER, { recursive: true });
const viewport = { width: 1280, height: 880 };
const lab = await Lab.open('lab?reset', { viewport });
const panel = new Panel(lab);
const notebooks = [];

async function picture(name, clip) {
  // The pointer must not highlight any element.
  await lab.page.mouse.move(640, 860);
  await lab.page.screenshot({ path: `${FOLDER}${name}.png`, clip });
}

/** Return the part of the page around elements, with a margin in pixels. */
async function around(margin, ...locators) {
  const boxes = await Promise.all(locators.map(one => one.boundingBox()));
  const left = Math.min(...boxes.map(box => box.x)) - margin;
  const top = Math.min(...boxes.map(box => box.y)) - margin;
  const right = Math.max(...boxes.map(box => box.x + box.width)) + margin;
  const bottom = Math.max(...boxes.map(box => box.y + box.height)) + margin;
  const x = Math.max(0, left);
  const y = Math.max(0, top);
  return {
    x,
    y,
    width: Math.min(viewport.width, right) - x,
    height: Math.min(viewport.height, bottom) - y
  };
}

try {
  const launcher = lab.page.locator('.jp-Launcher-section').first();
  await launcher.waitFor();
  await picture('launcher', await around(8, launcher));

  await setTurns(8, 1);
  for (const [name, millions] of Object.entries(NOTEBOOKS)) {
    const sources = [setup(millions), TRAIN];
    notebooks.push(await Notebook.create(name, { sources }));
    await lab.notebook(name);
    await lab.run(0);
    await client(name, one => one.allocated > 0);
  }
  for (const name of NAMES) {
    await lab.notebook(name);
    await lab.run(1);
    await client(name, one => one.cells > 0);
  }
  await client('train.ipynb', one => one.turn_count > 1);
  await waitUntil(
    async () => {
      const infer = await client('infer.ipynb');
      return infer.turn_count > 2 && infer.phase === 'waiting';
    },
    'wait after some turns',
    90_000
  );
  const line = lab.cells.nth(1).locator('.gpushare-Waiting');
  await line.waitFor();
  await picture('waiting', await around(10, lab.cells.nth(0), line));

  await lab.command('docmanager:open', { path: 'train.ipynb' });
  await lab.reads(/running.* [3-9] s left/, 60_000);
  const bar = lab.page.locator('#jp-main-statusbar');
  const { y, height } = await bar.boundingBox();
  await picture('status-item', { x: 0, y, width: 640, height });
  await lab.command('docmanager:open', { path: 'infer.ipynb' });

  await panel.open();
  await lab.page.evaluate(() => {
    globalThis.jupyterapp.shell.collapseLeft();
  });
  await panel.timeline.getByRole('combobox').selectOption({ index: 0 });
  await line.waitFor();
  await picture('panel-light');
  await lab.theme('dark');
  await line.waitFor();
  await picture('panel-dark');
  await lab.theme('light');

  await panel.act('infer.ipynb', /^Change GPU Quota/);
  const dialog = lab.page.locator('.jp-Dialog-content');
  await dialog.getByLabel('Share').fill('30%');
  await dialog.getByLabel('Memory').fill('512MiB');
  await picture('quota-dialog', await around(24, dialog));
  await lab.page.keyboard.press('Escape');
} finally {
  await lab.close();
  for (const notebook of notebooks) {
    await notebook.remove();
  }
}
