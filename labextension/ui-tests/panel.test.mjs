/** Tests of the side panel: its content and its actions. */
import assert from 'node:assert/strict';

import { client, rest, setTurns, waitUntil } from './jupyter.mjs';
import { shows } from './lab.mjs';
import { hasFocus, Panel, tabTo } from './panel.mjs';
import { Stage } from './stage.mjs';

const MINE = 'mine.ipynb';
const OTHER = 'other.ipynb';

let lab;
let panel;
const notebooks = {};

const stage = new Stage('panel');

stage.setUp(async () => {
  notebooks.mine = await stage.notebook(MINE, { more: ['%gpushare status'] });
  notebooks.other = await stage.notebook(OTHER);
  lab = await stage.open('lab?reset');
  panel = new Panel(lab);
  for (const { path } of Object.values(notebooks)) {
    await lab.notebook(path);
    await lab.runsTo(0, /ready/);
  }
  await setTurns(2);
});

stage.test(
  'the panel shows running and waiting clients; a row opens its notebook',
  async () => {
    await panel.open();
    await panel.node.getByText('simulated').first().waitFor();
    await lab.runIn(MINE, 1);
    await lab.runIn(OTHER, 1);
    await shows(panel.row(MINE), /Running · for/);
    await shows(panel.row(OTHER), /#1 in queue/);
    await shows(panel.row(OTHER), /Running · for/);
    await lab.screenshot('panel-busy');

    await panel.link(MINE).click();
    await lab.page.waitForFunction(
      path => globalThis.jupyterapp.shell.currentWidget.context?.path === path,
      MINE
    );
  }
);

stage.test('the timeline has turns and cells, and reacts to keys', async () => {
  const { timeline } = panel;
  const paths = kind =>
    timeline.locator(`path.gpushare-Lane-${kind}[d*=M]`).count();
  for (const kind of ['running', 'waiting', 'starts']) {
    await waitUntil(() => paths(kind), `${kind} in the timeline`);
  }
  const chart = timeline.getByRole('group', { name: /^Timeline: / });
  await chart.focus();
  await lab.page.keyboard.press('ArrowLeft');
  const announced = timeline.getByRole('status');
  await shows(announced, /running|waiting/i, { state: 'attached' });
});

stage.test('cells reach their end', async () => {
  for (const notebook of Object.values(notebooks)) {
    await notebook.finish();
  }
  for (const name of [MINE, OTHER]) {
    await shows(panel.row(name), 'Idle');
  }
});

stage.test('a refused quota can be corrected in the dialog', async () => {
  await panel.act(MINE, /^Change GPU Quota/);
  const dialog = await panel.dialog();
  const share = dialog.getByLabel('Share');
  await dialog.getByLabel('Memory').fill('700MiB');
  await dialog.getByLabel('Limit').fill('80%');
  await share.fill('90%');
  await lab.page.keyboard.press('Enter');
  await dialog.getByText('allowed is a share up to the limit').waitFor();
  assert.equal(await dialog.getByLabel('Memory').inputValue(), '700MiB');
  await waitUntil(() => hasFocus(share), 'focus on what is wrong');
  await lab.screenshot('quota-dialog');
  await share.fill('30%');
  await lab.page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'detached' });
});

stage.test('%gpushare shows the new quota', async () => {
  await lab.notebook(MINE);
  await lab.runsTo(2, /share 0\.3/);
  assert.match(await lab.output(2).innerText(), /memory 700 MiB/);
  const { quota } = await client(MINE);
  assert.equal(quota.share, 0.3);
  assert.equal(quota.memory, 700 * 2 ** 20);
});

stage.test('an admin changes the quantum', async () => {
  await panel.node.getByRole('button', { name: /^Change/ }).click();
  const dialog = await panel.dialog();
  await dialog.getByText('until the coordinator stops').waitFor();
  await dialog.getByLabel('Time quantum').fill('7');
  await lab.screenshot('settings-dialog');
  await lab.page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'detached' });
  await panel.node.getByText('7 s', { exact: true }).waitFor();
  assert.equal((await rest('GET', 'gpushare/api/config')).time_quantum, 7);
});

stage.test('by keyboard: status item, panel, dialog, and back', async () => {
  const { page } = lab;
  await lab.cells.first().locator('.cm-content').click();
  await page.keyboard.press('Escape');
  await tabTo(page, lab.statusItem);
  await page.keyboard.press('Enter');
  const menu = panel.menu(MINE);
  await tabTo(page, menu);
  await page.keyboard.press('Enter');
  await page.getByRole('menuitem', { name: /^Change GPU Quota/ }).waitFor();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  const dialog = await panel.dialog();
  assert.ok(await hasFocus(dialog.getByLabel('Share')));
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await waitUntil(() => hasFocus(menu), 'focus on the button of the menu');
  await tabTo(page, lab.statusItem);
  assert.deepEqual(lab.faults, []);
});
