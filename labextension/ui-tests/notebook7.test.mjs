/** The same extension in Notebook 7, which has no status bar. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { Notebook, skip } from './jupyter.mjs';
import { Lab } from './lab.mjs';

const PATH = 'one.ipynb';

let page;
let notebook;

before(async () => {
  if (!skip) {
    notebook = await Notebook.create(PATH);
    page = await Lab.open(`notebooks/${PATH}`);
  }
});

after(async () => {
  if (!skip) {
    await page?.screenshot('last-notebook7');
    await page?.close();
    await notebook?.remove();
  }
});

test('the chip in the toolbar follows the cell', { skip }, async () => {
  await page.ready(PATH);
  await page.runsTo(0, /ready/);
  await page.screenshots('notebook7');
  assert.deepEqual(page.faults, []);
});
