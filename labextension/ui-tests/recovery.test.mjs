/** The coordinator dies while a cell works: it is seen, and nothing is lost. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { client, Notebook, skip, status, until } from './jupyter.mjs';
import { Lab } from './lab.mjs';

const PATH = 'recovery.ipynb';

let lab;
let notebook;

before(async () => {
  if (!skip) {
    notebook = await Notebook.create(PATH);
    lab = await Lab.open(`lab/tree/${PATH}?reset`);
  }
});

after(async () => {
  if (!skip) {
    await lab?.screenshot('last-recovery');
    await lab?.close();
    await notebook?.remove();
  }
});

test(
  'a killed coordinator is away, then back; the cell works on',
  { skip },
  async () => {
    await lab.ready(PATH);
    await lab.runsTo(0, /ready/);
    await lab.run(1);
    await lab.reads(/^GPU: running\b/);
    const before = await client(PATH);
    const { pid } = (await status()).coordinator;

    const texts = await lab.watchTexts(lab.statusItem);
    process.kill(pid, 'SIGKILL');
    await until(
      async () => (await texts()).some(text => /away/i.test(text)),
      'word of the absence'
    );
    await lab.reads(/^GPU: running\b/);
    const after = await client(
      PATH,
      one => one.phase === 'running' && one.cells > 0
    );
    assert.notEqual((await status()).coordinator.pid, pid);
    assert.equal(after.id, before.id);
    assert.ok(after.allocated >= before.allocated);

    await notebook.finish();
    await lab.output(1).filter({ hasText: 'work done' }).waitFor();
    await lab.reads(/^GPU: idle\b/);
    assert.doesNotMatch(await lab.output(1).innerText(), /Error|Traceback/);
    assert.deepEqual(lab.faults, []);
  }
);
