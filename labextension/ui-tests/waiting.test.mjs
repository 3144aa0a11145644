/** Tests of a cell that waits for the GPU, with the actions of its user. */
import assert from 'node:assert/strict';

import { client, rest, setTurns } from './jupyter.mjs';
import { Lab, shows, STARTS_WITHIN } from './lab.mjs';
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
  // In this mode, the notebook removes cells from the page while the user
  // scrolls.
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
  await setTurns(600);
}, restore);

async function restore() {
  await rest('PUT', NOTEBOOKS, { raw: '{}' });
}

stage.test(
  'the cell shows the reason of its wait, outside of its outputs',
  async () => {
    for (const name of ['train.ipynb', 'explore.ipynb']) {
      await lab.notebook(name);
      await lab.runsTo(0, /ready/);
    }
    await lab.runIn('train.ipynb', 1);
    await lab.reads(/^GPU: running\b/);
    await lab.runIn('explore.ipynb', 1);

    const box = lab.cells.nth(1).locator('.gpushare-Waiting');
    await shows(box, /^Waiting for the GPU: #1/);
    assert.match(
      await box.innerText(),
      /\(train\.ipynb is running, (up to )?\d+ m?/
    );
    await box.getByRole('progressbar').waitFor();
    await shows(lab.chip, /^GPU: #1 in queue/);
    await lab.screenshots('cell-waiting');

    // The text below the cell disappears and returns with the cell.
    const scrollTo = cell =>
      lab.page.evaluate(async cell => {
        const { content } = globalThis.jupyterapp.shell.currentWidget;
        content.activeCellIndex = cell;
        await content.scrollToItem(cell);
      }, cell);
    await scrollTo(MANY_CELLS);
    await waiting().waitFor({ state: 'hidden' });
    await scrollTo(0);
    await box.waitFor();
    assert.equal(await waiting().count(), 1);

    await lab.command('docmanager:save');
    assert.doesNotMatch(JSON.stringify(await explore.saved()), /Waiting/);
  }
);

stage.test('another window shows the wait as well', async () => {
  const other = await Lab.open('lab/workspaces/other/tree/explore.ipynb?reset');
  try {
    await shows(
      other.cells.nth(1).locator('.gpushare-Waiting'),
      /^Waiting for the GPU: #1/,
      { timeout: STARTS_WITHIN } // of the notebook in the new window
    );
    await other.screenshot('cell-waiting-elsewhere');
    assert.deepEqual(other.faults, []);
  } finally {
    await other.close();
  }
});

stage.test('a suspended client can be resumed at its cell', async () => {
  await choose('Suspend GPU Use');
  await shows(waiting(), /^Suspended/);
  await client('explore.ipynb', one => one.suspended);
  await waiting().getByRole('button', { name: 'Resume' }).click();
  await shows(waiting(), /^Waiting/);
});

stage.test('the turn removes all of the wait from the page', async () => {
  await train.finish();
  await waiting().waitFor({ state: 'detached' });
  await explore.finish();
  await lab.worked();
  assert.equal((await lab.output(1).innerText()).trim(), 'work done');
  await lab.command('docmanager:save');
  const { outputs } = (await explore.saved()).cells[1];
  assert.deepEqual(
    outputs.map(({ text }) => text),
    ['work done\n']
  );
  assert.deepEqual(lab.faults, []);
});
