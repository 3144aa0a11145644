/** Tests of three notebooks on one device. */
import assert from 'node:assert/strict';

import {
  client,
  configure,
  Notebook,
  rest,
  status,
  setTurns,
  waitUntil
} from './jupyter.mjs';
import { shows } from './lab.mjs';
import { Stage } from './stage.mjs';

const KERNEL = 'Python 3 (shared GPU)';

let lab;
const notebooks = {};

const stage = new Stage('sharing');

stage.setUp(async () => {
  for (const name of ['train', 'explore', 'infer']) {
    notebooks[name] = await stage.notebook(`${name}.ipynb`, {
      more: name === 'explore' ? [HOLDING] : []
    });
  }
  lab = await stage.open('lab?reset');
});

stage.test('the shared kernel is chosen in the launcher', async () => {
  const { page } = lab;
  const card = page
    .locator('.jp-Launcher-section')
    .filter({ hasText: 'Notebook' })
    .locator('.jp-LauncherCard')
    .filter({ hasText: KERNEL });
  await card.first().waitFor();
  await lab.screenshot('launcher');
  await card.first().click();
  await lab.reads(/^GPU: idle \(simulated\)$/, 60_000);
  const path = await page.evaluate(
    () => globalThis.jupyterapp.shell.currentWidget.context.path
  );
  await new Notebook(path).remove();
});

/**
 * The cell waits at the gate with Python's lock held, so the kernel runs
 * nothing else.
 */
const HOLDING = `\
import ctypes
library = ctypes.PyDLL("libcuda.so.1")
status = library.cuMemsetD8_v2(ctypes.c_uint64(x.pointer), 0, ctypes.c_size_t(4))
print("status", status)`;

stage.test('waiting cells show their wait below', async () => {
  const { page } = lab;
  await setTurns(60);
  await configure({ policy: 'fcfs', sharing: 'exclusive' });
  for (const { path } of Object.values(notebooks)) {
    await lab.notebook(path);
    await lab.runsTo(0, /ready/);
  }
  await lab.runIn('train.ipynb', 1);
  await lab.reads(/^GPU: running\b/);
  await lab.runIn('infer.ipynb', 1);
  await client('infer.ipynb', one => one.phase === 'waiting');
  await lab.runIn('explore.ipynb', 2);
  await lab.reads(/^GPU: #2 in queue/);
  const cell = lab.cells.nth(2);
  await cell
    .getByText(/^Waiting for the GPU: #2.*train\.ipynb is running/)
    .waitFor();
  await cell.getByRole('progressbar', { name: 'Wait for the GPU' }).waitFor();
  await lab.screenshot('waiting');

  // The cell of infer.ipynb has the next turn, then this cell.
  await release('train.ipynb');
  await cell
    .getByText(/^Waiting for the GPU: #1.*infer\.ipynb is running/)
    .waitFor();
  await release('infer.ipynb');
  await shows(lab.output(2), 'status 0');
  await page.getByText(/Waiting for the GPU/).waitFor({ state: 'detached' });
});

stage.test('notebooks take turns, and reach their end', async () => {
  await configure({
    policy: 'interactive',
    sharing: 'auto',
    time_quantum: 1
  });
  await notebooks.explore.rewind();
  await lab.run(1);
  const seen = await lab.watch(lab.statusItem);
  await waitUntil(async () => {
    const texts = (await seen()).texts.join('\n');
    return /in queue[^]*running[^]*in queue/.test(texts);
  }, 'turn between two waits');
  for (const name of ['infer', 'explore', 'train']) {
    await notebooks[name].finish();
    await lab.notebook(`${name}.ipynb`);
    await lab.worked();
  }
  await lab.reads(/^GPU: idle\b/);
  const { clients, devices } = await status();
  assert.equal(devices.length, 1);
  assert.ok(clients.every(one => one.turn_count > 1));
});

stage.test('the status item disappears with the kernel', async () => {
  await lab.command('launcher:create');
  await lab.page.locator('.jp-Launcher-body').waitFor();
  await lab.statusItem.waitFor({ state: 'hidden' });
  assert.deepEqual(lab.faults, []);
});

/** Release the turn of a notebook, as another program of the same user may. */
async function release(path) {
  const { id } = await client(path, one => one.phase === 'running');
  await rest('POST', `gpushare/api/clients/${id}/release`);
}
