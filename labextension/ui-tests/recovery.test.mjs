/** Test of a coordinator that dies while a cell works. */
import assert from 'node:assert/strict';

import { client, status, waitUntil } from './jupyter.mjs';
import { Stage } from './stage.mjs';

const PATH = 'recovery.ipynb';

let lab;
let notebook;

const stage = new Stage('recovery');

stage.setUp(async () => {
  notebook = await stage.notebook(PATH);
  lab = await stage.open(`lab/tree/${PATH}?reset`);
});

stage.test(
  'a killed coordinator is restarted, and the cell continues',
  async () => {
    await lab.ready(PATH);
    await lab.runsTo(0, /ready/);
    await lab.run(1);
    await lab.reads(/^GPU: running\b/);
    const before = await client(PATH);
    const { pid } = (await status()).coordinator;

    const item = await lab.watch(lab.statusItem);
    const chip = await lab.watch(lab.chip);
    process.kill(pid, 'SIGKILL');
    await waitUntil(
      async () => (await item()).texts.some(text => /unavailable/i.test(text)),
      'word of the absence'
    );
    await lab.reads(/^GPU: running\b/);
    const after = await client(
      PATH,
      one => one.phase === 'running' && one.cells > 0
    );
    // A toolbar moves a wider item into a menu and leaves the item there. During
    // a new layout, items have no width.
    const { texts, widths } = await chip();
    assert.ok(texts.includes('GPU: unavailable'));
    const shown = widths.filter(width => width > 0);
    assert.equal(new Set(shown).size, 1, `${shown} px`);
    assert.ok(await lab.chip.isVisible());
    assert.notEqual((await status()).coordinator.pid, pid);
    assert.equal(after.id, before.id);
    assert.ok(after.allocated >= before.allocated);

    await notebook.finish();
    await lab.worked();
    await lab.reads(/^GPU: idle\b/);
    assert.doesNotMatch(await lab.output(1).innerText(), /Error|Traceback/);
    assert.deepEqual(lab.faults, []);
  }
);
