/** A cell that waits for the GPU, and what one can do about it meanwhile. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { client, rest, skip, takeTurns } from './jupyter.mjs';
import { Lab } from './lab.mjs';
import { Stage } from './stage.mjs';

const MANY_CELLS = 60;
const NOTEBOOKS = 'lab/api/settings/@jupyterlab/notebook-extension:tracker';

let lab;
let train;
let explore;

const waiting = () => lab.page.locator('.gpushare-Waiting');

/** Choose an item of the chip's menu. */
async function choose(name) {
  await lab.chip.click();
  await lab.page.getByRole('menuitem', { name }).click();
}

const stage = new Stage('waiting');

stage.setUp(async () => {
  // So that cells leave the page while others are looked at.
  await rest('PUT', NOTEBOOKS, { raw: '{"windowingMode": "full"}' });
  train = await stage.notebook('train.ipynb');
  const source = (await train.saved()).cells.map(cell => cell.source);
  const more = Array.from({ length: MANY_CELLS }, (_, i) => `${i}\n\n\n\n`);
  explore = await stage.notebook('explore.ipynb', {
    sources: [
      ...source.map(text => text.replace(train.end, 'explore.ipynb.end')),
      ...more
    ]
  });
  lab = await stage.open('lab?reset');
  await takeTurns(600);
});

after(async () => {
  if (!skip) {
    await rest('PUT', NOTEBOOKS, { raw: '{}' });
  }
});

test(
  'it says why it waits, outside of its outputs, until it runs',
  { skip },
  async () => {
    for (const name of ['train.ipynb', 'explore.ipynb']) {
      await lab.notebook(name);
      await lab.runsTo(0, /ready/);
    }
    await lab.notebook('train.ipynb');
    await lab.run(1);
    await lab.reads(/^GPU: running\b/);
    await lab.notebook('explore.ipynb');
    await lab.run(1);

    const box = lab.cells.nth(1).locator('.gpushare-Waiting');
    await box.filter({ hasText: /^Waiting for the GPU: #1/ }).waitFor();
    assert.match(
      await box.innerText(),
      /\(train\.ipynb is running, (up to )?\d+ m?/
    );
    await box.getByRole('progressbar').waitFor();
    await lab.chip.filter({ hasText: /^GPU: #1 in queue/ }).waitFor();
    await lab.screenshots('cell-waiting');

    // It goes and comes with its cell.
    const look = cell =>
      lab.page.evaluate(async cell => {
        const { content } = globalThis.jupyterapp.shell.currentWidget;
        content.activeCellIndex = cell;
        await content.scrollToItem(cell);
      }, cell);
    await look(MANY_CELLS);
    await waiting().waitFor({ state: 'hidden' });
    await look(0);
    await box.waitFor();
    assert.equal(await waiting().count(), 1);

    await lab.command('docmanager:save');
    assert.doesNotMatch(JSON.stringify(await explore.saved()), /Waiting/);
  }
);

test('another window says so as well', { skip }, async () => {
  const other = await Lab.open('lab/workspaces/other/tree/explore.ipynb?reset');
  try {
    await other.cells
      .nth(1)
      .locator('.gpushare-Waiting')
      .filter({ hasText: /^Waiting for the GPU: #1/ })
      .waitFor();
    await other.screenshot('cell-waiting-elsewhere');
    assert.deepEqual(other.faults, []);
  } finally {
    await other.close();
  }
});

test('a suspended one can be resumed where it waits', { skip }, async () => {
  await choose('Suspend GPU Use');
  await waiting()
    .filter({ hasText: /^Suspended/ })
    .waitFor();
  await client('explore.ipynb', one => one.suspended);
  await waiting().getByRole('button', { name: 'Resume' }).click();
  await waiting()
    .filter({ hasText: /^Waiting/ })
    .waitFor();
});

test(
  'its turn comes: nothing of the wait is left, nor printed',
  { skip },
  async () => {
    await train.finish();
    await waiting().waitFor({ state: 'detached' });
    await explore.finish();
    await lab.output(1).filter({ hasText: 'work done' }).waitFor();
    assert.equal((await lab.output(1).innerText()).trim(), 'work done');
    await lab.command('docmanager:save');
    const { outputs } = (await explore.saved()).cells[1];
    assert.deepEqual(
      outputs.map(({ text }) => text),
      ['work done\n']
    );
    assert.deepEqual(lab.faults, []);
  }
);
