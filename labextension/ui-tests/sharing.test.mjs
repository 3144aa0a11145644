/** Three notebooks on one device, as their user lives through it. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { client, configure, Notebook, skip, status } from './jupyter.mjs';
import { Lab } from './lab.mjs';

const KERNEL = 'Python 3 (shared GPU)';

let lab;
const notebooks = {};

before(async () => {
  if (skip) {
    return;
  }
  for (const name of ['train', 'explore', 'infer']) {
    notebooks[name] = await Notebook.create(`${name}.ipynb`);
  }
  lab = await Lab.open('lab?reset');
});

after(async () => {
  if (skip) {
    return;
  }
  await lab?.screenshot('last-sharing');
  await lab?.close();
  for (const notebook of Object.values(notebooks)) {
    await notebook.remove();
  }
});

test('the shared kernel is chosen in the launcher', { skip }, async () => {
  const { page } = lab;
  const card = page
    .locator('.jp-Launcher-section')
    .filter({ hasText: 'Notebook' })
    .locator('.jp-LauncherCard')
    .filter({ hasText: KERNEL });
  await card.first().waitFor();
  await lab.screenshots('launcher');
  await card.first().click();
  await lab.reads(/^GPU: idle \(simulated\)$/, 60_000);
  const path = await page.evaluate(
    () => globalThis.jupyterapp.shell.currentWidget.context.path
  );
  notebooks.untitled = new Notebook(path);
  await notebooks.untitled.remove();
});

test('three notebooks take turns', { skip }, async () => {
  await configure({
    policy: 'fcfs',
    sharing: 'exclusive',
    time_quantum: 3,
    idle_release: 0.25
  });
  for (const { path } of Object.values(notebooks).slice(0, 3)) {
    await lab.notebook(path);
    await lab.runsTo(0, /ready/);
  }
  await lab.notebook('train.ipynb');
  await lab.run(1);
  await lab.reads(/^GPU: running\b/);
  await lab.notebook('explore.ipynb');
  await lab.run(1);
  await client('explore.ipynb', one => one.phase === 'waiting');
  await lab.notebook('infer.ipynb');
  await lab.run(1);

  // The last one sees its place in the queue, then its turn, then the end.
  await lab.reads(/^GPU: #\d in queue/);
  await lab.screenshots('waiting');
  await lab.reads(/^GPU: running\b.* left/);
  await notebooks.infer.finish();
  await lab.output(1).filter({ hasText: 'work done' }).waitFor();
  await lab.reads(/^GPU: idle\b/);

  for (const name of ['explore', 'train']) {
    await notebooks[name].finish();
    await lab.notebook(`${name}.ipynb`);
    await lab.output(1).filter({ hasText: 'work done' }).waitFor();
  }
  const { clients, devices } = await status();
  assert.equal(devices.length, 1);
  assert.ok(clients.every(one => one.quanta > 0));
  assert.deepEqual(lab.faults, []);
});
