/**
 * Tests of an unused notebook: notifications, and a cell that resumes the
 * kernel.
 */
import assert from 'node:assert/strict';

import { client, configure, rest } from './jupyter.mjs';
import { shows } from './lab.mjs';
import { Stage } from './stage.mjs';

const PATH = 'idle.ipynb';
const PLUGIN = 'lab/api/settings/jupyter-gpushare:plugin';
const NEVER = { idle_warn: 0, idle_evict: 0, idle_suspend: 0 };
/** Half a second of work, for the last cell. */
const WORK = 'gpu.work(x, 0.5, launch=0.005)\nprint("goes on")';

let lab;

const stage = new Stage('idleness');

stage.setUp(async () => {
  await configure(NEVER);
  await stage.notebook(PATH, { more: [WORK] });
  lab = await stage.open(`lab/tree/${PATH}?reset`);
}, restore);

async function restore() {
  await configure(NEVER);
  await rest('PUT', PLUGIN, { raw: '{}' });
}

const notice = (page = lab.page) =>
  page
    .locator('.Toastify__toast')
    .filter({ hasText: /^idle\.ipynb has not been used for \d+ / });

stage.test(
  'notifications report the eviction, then the suspension',
  async () => {
    await lab.ready(PATH);
    await lab.runsTo(0, /ready/);
    await lab.reads(/^GPU: idle\b/);
    await configure({ idle_warn: 1, idle_evict: 600 });
    await lab.reads(/^GPU: idle for long · memory moves off in \d+ (s|min)/);
    await configure({ idle_evict: 2 });
    await lab.reads(/^GPU: idle, moved off/);
    const first = notice().filter({ hasText: /its memory has moved off/ });
    await first.waitFor();
    assert.equal(await lab.chip.innerText(), 'GPU: idle, moved off');
    await lab.screenshots('idle-evicted');

    await configure({ idle_suspend: 3 });
    await lab.reads(/^GPU: suspended, idle/);
    await shows(notice(), /is now suspended/);
    await first.waitFor({ state: 'detached' });
  }
);

stage.test('a cell that runs resumes the kernel', async () => {
  await configure(NEVER);
  await lab.runsTo(2, /goes on/);
  await notice().waitFor({ state: 'detached' });
  await lab.reads(/^GPU: idle( \(simulated\))?$/);
  const { resident } = await client(PATH, one => one.phase === 'idle');
  assert.ok(resident > 0);
});

stage.test('no notification appears if the setting is off', async () => {
  await rest('PUT', PLUGIN, { raw: '{"notifyIdle": false}' });
  const { page: enabled } = lab;
  lab = await stage.open(`lab/tree/${PATH}?reset`);
  await lab.ready(PATH);
  await lab.reads(/^GPU: idle\b/);
  await configure({ idle_evict: 1 });
  await lab.reads(/^GPU: idle, moved off/);
  await notice(enabled).waitFor();
  assert.equal(await notice().count(), 0);
  assert.deepEqual(lab.faults, []);
});
