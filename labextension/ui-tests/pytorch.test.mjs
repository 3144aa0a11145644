/**
 * Tests of two notebooks with PyTorch, whose tensors together exceed the
 * device. GPUSHARE_UI_TORCH is the kernelspec of a Python with PyTorch; the
 * tests are skipped without it (tests/frameworks/test_browser.py).
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { client, Notebook, rest } from './jupyter.mjs';
import { shows } from './lab.mjs';
import { Stage } from './stage.mjs';

const kernel = process.env.GPUSHARE_UI_TORCH;
const TENSORS = `\
import os, torch
expected = torch.arange(96 << 20)
x = expected.cuda()
print("ready", x.numel() * 8 >> 20, "MiB")`;
/** Work until a call of `finish`. */
const WORK = `\
while not os.path.exists("END"):
    y = x[:1024] + 1
    torch.cuda.synchronize()
print("work done", torch.equal(x.cpu(), expected))`;
const SHORT = 'print("same", torch.equal(x.cpu(), expected))';

if (kernel) {
  const stage = new Stage('pytorch');
  let lab;
  let train;

  stage.setUp(async () => {
    const notebook = (path, work) =>
      stage.notebook(path, { kernel, sources: [TENSORS, work, SHORT] });
    const { end } = new Notebook('train.ipynb');
    train = await notebook('train.ipynb', WORK.replace('END', end));
    await notebook('explore.ipynb', SHORT);
    lab = await stage.open('lab?reset');
  });

  stage.test('a short cell runs beside a training', async () => {
    for (const path of ['train.ipynb', 'explore.ipynb']) {
      await lab.notebook(path);
      await lab.runsTo(0, /ready 768 MiB/);
    }
    await lab.runIn('train.ipynb', 1);
    await client('train.ipynb', one => one.phase === 'running');
    await lab.runIn('explore.ipynb', 1);
    await shows(lab.output(1), /same True/, { timeout: 60_000 });
    await lab.screenshot('pytorch');
  });

  stage.test('the tensors of the training are unchanged', async () => {
    await train.finish();
    await lab.notebook('train.ipynb');
    await shows(lab.output(1), /work done True/, { timeout: 60_000 });
    const { rows } = await rest('GET', 'gpushare/api/usage');
    assert.ok(rows.some(row => row.evicted_bytes > 0));
    assert.deepEqual(lab.faults, []);
  });
} else {
  test('notebooks with PyTorch', { skip: 'GPUSHARE_UI_TORCH is not set' });
}
