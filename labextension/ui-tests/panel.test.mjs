/** The side panel: what it tells, and what can be done from it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { client, rest, skip, takeTurns, until } from './jupyter.mjs';
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
  await takeTurns(2);
});

test(
  'it shows who runs and who waits; a row opens its notebook',
  { skip },
  async () => {
    await panel.open();
    await panel.node.getByText('simulated').first().waitFor();
    await lab.notebook(MINE);
    await lab.run(1);
    await lab.notebook(OTHER);
    await lab.run(1);
    await panel
      .row(MINE)
      .filter({ hasText: /Running · for/ })
      .waitFor();
    await panel
      .row(OTHER)
      .filter({ hasText: /#1 in queue/ })
      .waitFor();
    await panel
      .row(OTHER)
      .filter({ hasText: /Running · for/ })
      .waitFor();
    await lab.screenshot('panel-busy');

    await panel.link(MINE).click();
    await lab.page.waitForFunction(
      path => globalThis.jupyterapp.shell.currentWidget.context?.path === path,
      MINE
    );
  }
);

test(
  'the timeline has turns and cells, and can be paused',
  { skip },
  async () => {
    const { timeline } = panel;
    const paths = kind =>
      timeline.locator(`path.gpushare-Lane-${kind}[d*=M]`).count();
    for (const kind of ['running', 'waiting', 'starts']) {
      assert.ok((await paths(kind)) > 0, kind);
    }
    const chart = timeline.getByRole('group', { name: /^Timeline: / });
    await chart.focus();
    await lab.page.keyboard.press('ArrowLeft');
    const told = timeline.getByRole('status');
    await told.filter({ hasText: /running|waiting/i }).waitFor({
      state: 'attached'
    });

    await chart.blur();
    await timeline.getByRole('button', { name: 'Pause' }).click();
    const goOn = timeline.getByRole('button', { name: 'Go on' });
    await goOn.waitFor();
    await lab.page.mouse.move(0, 0);
    const drawn = async () => (await chart.screenshot()).toString('base64');
    const turns = async count => {
      const { quanta } = await client(MINE);
      await client(MINE, one => one.quanta >= quanta + count);
    };
    // What happened before the pause may become known after it.
    let paused = '';
    await until(async () => {
      paused = await drawn();
      await turns(2);
      return (await drawn()) === paused;
    }, 'pause of the timeline');
    await goOn.click();
    await until(
      async () => (await drawn()) !== paused,
      'change of the timeline'
    );
  }
);

test('cells come to their end', { skip }, async () => {
  for (const notebook of Object.values(notebooks)) {
    await notebook.finish();
  }
  for (const name of [MINE, OTHER]) {
    await panel.row(name).filter({ hasText: 'Idle' }).waitFor();
  }
});

test(
  'a quota that cannot be is refused with the range, and nothing typed is lost',
  { skip },
  async () => {
    await panel.act(MINE, /^Change GPU Quota/);
    const dialog = lab.page.getByRole('dialog');
    const share = dialog.getByLabel('Share');
    await share.fill('200%');
    await dialog.getByLabel('Memory').fill('700MiB');
    await lab.page.keyboard.press('Enter');
    await dialog.getByText(/^Allowed: a fraction from 0 to 1/).waitFor();
    assert.equal(await share.inputValue(), '200%');
    assert.equal(await dialog.getByLabel('Memory').inputValue(), '700MiB');
    await until(() => hasFocus(share), 'focus on what is wrong');
    await lab.screenshot('quota-dialog');
    await dialog.getByLabel('Limit').fill('80%');
    await share.fill('90%');
    await lab.page.keyboard.press('Enter');
    await dialog.getByText('allowed is a share up to the limit').waitFor();
    await share.fill('30%');
    await lab.page.keyboard.press('Enter');
    await dialog.waitFor({ state: 'detached' });
  }
);

test('%gpushare tells the new quota', { skip }, async () => {
  await lab.notebook(MINE);
  await lab.runsTo(2, /share 0\.3/);
  assert.match(await lab.output(2).innerText(), /memory 700 MiB/);
  const { quota } = await client(MINE);
  assert.equal(quota.share, 0.3);
  assert.equal(quota.memory, 700 * 2 ** 20);
});

test('an admin changes the quantum', { skip }, async () => {
  await panel.node.getByRole('button', { name: /^Change/ }).click();
  const dialog = lab.page.getByRole('dialog');
  await dialog.getByText('until the coordinator stops').waitFor();
  await dialog.getByLabel('Time quantum').fill('7');
  await lab.screenshot('settings-dialog');
  await lab.page.keyboard.press('Enter');
  await dialog.waitFor({ state: 'detached' });
  await panel.node.getByText('7 s', { exact: true }).waitFor();
  assert.equal((await rest('GET', 'gpushare/api/config')).time_quantum, 7);
});

test(
  'suspended, a notebook gets no turn until it is resumed',
  { skip },
  async () => {
    await panel.act(OTHER, /^Suspend/);
    await panel.row(OTHER).filter({ hasText: 'Suspended' }).waitFor();
    await notebooks.other.rewind();
    await lab.notebook(OTHER);
    await lab.reads(/^GPU: suspended/);
    await lab.run(1);
    await client(OTHER, one => one.cells > 0);
    await notebooks.other.finish();
    await panel.act(OTHER, /^Resume/);
    await lab.output(1).filter({ hasText: 'work done' }).waitFor();
    await panel.row(OTHER).filter({ hasText: 'Idle' }).waitFor();
  }
);

test(
  'by keyboard alone: to the status item, the panel, a dialog, and back',
  { skip },
  async () => {
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
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Share').waitFor();
    await until(
      () => hasFocus(dialog.getByLabel('Share')),
      'focus on the first field'
    );
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    await until(() => hasFocus(menu), 'focus on the button of the menu');
    await tabTo(page, lab.statusItem);
    assert.deepEqual(lab.faults, []);
  }
);
