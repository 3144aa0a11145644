/** No serious finding of axe in what is ours, in light and dark. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { assertAccessible } from './axe.mjs';
import { Notebook, skip } from './jupyter.mjs';
import { Lab } from './lab.mjs';

const PATH = 'accessible.ipynb';

let lab;
let notebook;

before(async () => {
  if (!skip) {
    notebook = await Notebook.create(PATH);
    lab = await Lab.open(`lab/tree/${PATH}?reset`);
    await lab.ready(PATH);
  }
});

after(async () => {
  if (!skip) {
    await lab?.screenshot('last-accessibility');
    await lab?.close();
    await notebook?.remove();
  }
});

test('the status item and the panel that it opens', { skip }, async () => {
  const { page, statusItem } = lab;
  await assertAccessible(lab, statusItem, 'status-item');
  await statusItem.click();
  const panel = page.getByRole('region', { name: 'GPU sharing' });
  await panel.getByRole('button', { name: PATH, exact: true }).waitFor();
  await panel.getByRole('heading', { name: 'Timeline' }).waitFor();
  await assertAccessible(lab, panel, 'panel');
  assert.deepEqual(lab.faults, []);
});
