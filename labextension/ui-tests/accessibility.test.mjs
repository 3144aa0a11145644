/**
 * Tests that axe finds nothing serious in this extension's elements, in light
 * and dark.
 */
import assert from 'node:assert/strict';

import { assertAccessible } from './axe.mjs';
import { client, setTurns } from './jupyter.mjs';
import { Panel } from './panel.mjs';
import { Stage } from './stage.mjs';

const BUSY = 'busy.ipynb';
const WAITING = 'waiting.ipynb';
const AWAY = {
  type: 'unavailable',
  reason: 'unreachable',
  message: 'no coordinator answers'
};

let lab;
let panel;
let events;
let isAway = false;

/**
 * Forward messages of the server, until the test simulates an unavailable
 * coordinator.
 */
function relay(page) {
  return page.routeWebSocket(/gpushare\/api\/events/, socket => {
    events = socket;
    socket.connectToServer().onMessage(frame => {
      if (!isAway) {
        socket.send(frame);
      }
    });
  });
}

const stage = new Stage('accessibility');

stage.setUp(async () => {
  // In a narrow toolbar, the chip is behind the ellipsis.
  const viewport = { width: 1600, height: 900 };
  lab = await stage.open('lab?reset', { viewport }, relay);
  panel = new Panel(lab);
});

stage.test('the panel without shared kernels', async () => {
  await panel.open();
  await panel.node.getByText(/^No kernel shares the GPU/).waitFor();
  await assertAccessible(lab, 'panel-empty', panel.node);
});

stage.test('panel, status item, chip and waiting line', async () => {
  for (const path of [BUSY, WAITING]) {
    await stage.notebook(path);
    await lab.notebook(path);
    await lab.runsTo(0, /ready/);
  }
  await setTurns(600);
  await lab.runIn(BUSY, 1);
  await client(BUSY, one => one.phase === 'running');
  await lab.runIn(WAITING, 1);
  const line = lab.cells.nth(1).locator('.gpushare-Waiting');
  await panel.timeline.waitFor();
  await assertAccessible(
    lab,
    'panel',
    panel.node,
    lab.statusItem,
    lab.chip,
    line
  );
});

stage.test('the menu of the chip', async () => {
  await lab.chip.click();
  // axe reports separators in the list of Lumino, so only the items are
  // checked.
  const items = lab.page.getByRole('menu').getByRole('menuitem');
  await items.first().waitFor();
  await assertAccessible(lab, 'chip-menu', ...(await items.all()));
  await lab.page.keyboard.press('Escape');
});

for (const [name, open] of [
  ['quota-dialog', () => panel.act(WAITING, /^Change GPU Quota/)],
  ['hold-dialog', () => panel.act(BUSY, /^Hold the GPU/)],
  ['settings-dialog', () => lab.command('gpushare:change-settings')]
]) {
  stage.test(`the ${name}`, async () => {
    const { page } = lab;
    void open();
    const form = (await panel.dialog()).locator('.gpushare-Form');
    const text = form.getByRole('textbox').first();
    await assertRingsFit(form);
    if (await text.count()) {
      await text.fill('nonsense');
      await page.keyboard.press('Enter');
      await form.locator('[aria-invalid=true]').waitFor();
    }
    await assertAccessible(lab, name, form);
    await page.keyboard.press('Escape');
    await form.waitFor({ state: 'detached' });
  });
}

/** The body of a dialog clips content that extends beyond its box. */
async function assertRingsFit(form) {
  const cut = await form.evaluate(node => {
    const ring = 2;
    const edge = node.closest('.jp-Dialog-body').getBoundingClientRect();
    return [...node.querySelectorAll('input, select')]
      .filter(field => {
        const { top, left, right } = field.getBoundingClientRect();
        return (
          top - ring < edge.top ||
          left - ring < edge.left ||
          right + ring > edge.right
        );
      })
      .map(field => field.id);
  });
  assert.deepEqual(cut, []);
}

stage.test('the panel while the coordinator is unavailable', async () => {
  isAway = true;
  events.send(JSON.stringify(AWAY));
  await lab.reads(/unavailable/i);
  await panel.node.getByText(/service is unavailable/).waitFor();
  await assertAccessible(
    lab,
    'panel-away',
    panel.node,
    lab.statusItem,
    lab.chip
  );
  assert.deepEqual(lab.faults, []);
});
