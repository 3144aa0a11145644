/** The status item: what it says, to whom, and how one gets there and back. */
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { skip } from './jupyter.mjs';
import { Stage } from './stage.mjs';

const PATH = 'statusitem.ipynb';

let lab;
let notebook;

const stage = new Stage('statusitem');

stage.setUp(async () => {
  notebook = await stage.notebook(PATH);
  lab = await stage.open(`lab/tree/${PATH}?reset`);
});

test(
  'a shared notebook: idle, running while its cell uses the GPU, idle again',
  { skip },
  async () => {
    await lab.ready(PATH);
    await lab.reads(/^GPU: idle( \(simulated\))?$/);
    await lab.runsTo(0, /ready/);
    await lab.run(1);
    await lab.reads(/^GPU: running\b/);
    await lab.screenshot('running');
    await notebook.finish();
    await lab.output(1).filter({ hasText: 'work done' }).waitFor();
    await lab.reads(/^GPU: idle\b/);
  }
);

test(
  'the item explains itself to keyboard and screen reader',
  { skip },
  async () => {
    const { page, statusItem } = lab;
    await statusItem.focus();
    await page.keyboard.press('Enter');
    const panel = page.getByRole('region', { name: 'GPU sharing' });
    await panel.getByRole('button', { name: PATH, exact: true }).waitFor();
    await page.waitForFunction(
      () => document.activeElement?.id === 'gpushare-panel'
    );
    await lab.screenshot('panel');
    assert.match(
      await statusItem.getAttribute('aria-label'),
      /^GPU: idle.*Quota: /
    );
    await page
      .locator('[role=status][aria-live=polite]')
      .filter({ hasText: /^GPU: idle/ })
      .waitFor({ state: 'attached' });
  }
);

test(
  'it is hidden where there is no kernel to speak of',
  { skip },
  async () => {
    await lab.command('launcher:create');
    await lab.page.locator('.jp-Launcher-body').waitFor();
    await lab.statusItem.waitFor({ state: 'hidden' });
    assert.deepEqual(lab.faults, []);
  }
);
