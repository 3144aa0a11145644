/** Test of a node that is lost while a page shows a notebook with its kernel. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';

import { rest } from './jupyter.mjs';
import { shows } from './lab.mjs';
import { NODE_KERNEL } from './server.mjs';
import { Stage } from './stage.mjs';

const PATH = 'nodes.ipynb';
const VALUE = `\
import os
print("x" in globals(), "on", os.path.basename(os.environ["XDG_STATE_HOME"]))`;
const VARIABLES = `x = 41\n${VALUE}\nprint(os.getpid(), os.environ["GPUSHARE_SOCKET"])`;
const STOP = `\
import sys
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Stop
for path in sys.argv[1:]:
    with Client(path) as coordinator:
        coordinator.request(Stop())`;

let lab;
let socket = '';

const stage = new Stage('nodes');

stage.setUp(async () => {
  await stage.notebook(PATH, {
    sources: [VARIABLES, VALUE],
    kernel: NODE_KERNEL
  });
  lab = await stage.open(`lab/tree/${PATH}?reset`);
}, restore);

/** End the coordinators of the nodes, which outlive servers by design. */
async function restore() {
  if (socket) {
    const sockets = [socket, socket.replace('/n1/', '/n2/')];
    spawnSync('python', ['-c', STOP, ...sockets], { stdio: 'inherit' });
  }
  for (const name of ['n1.lost', 'n1.pid', 'n2.pid']) {
    await rest('DELETE', `api/contents/${name}`).catch(() => null);
  }
}

stage.test(
  'an open page goes on with a kernel on another node, and shows why',
  async () => {
    await lab.ready(PATH);
    await lab.runsTo(0, /True on n1/);
    await lab.reads(/^GPU: on n1$/);
    const [, pid, path] = /(\d+) (\S+)/.exec(await lab.output(0).innerText());
    const kernel = Number(pid);
    socket = path;

    await rest('PUT', 'api/contents/n1.lost', {
      type: 'file',
      format: 'text',
      content: ''
    });
    const agent = await rest('GET', 'api/contents/n1.pid');
    process.kill(Number(agent.content), 'SIGKILL');
    process.kill(kernel, 'SIGKILL');
    // JupyterLab reports that the kernel starts anew.
    await lab.page.getByRole('button', { name: 'Ok', exact: true }).click();
    await lab.ready(PATH);
    await lab.runsTo(1, /False on n2/);
    await shows(
      lab.output(1),
      /this kernel has started anew on n2, without its variables: .*no route/
    );
    await lab.reads(/^GPU: on n2$/);
    await lab.screenshot('lost-node');
    assert.deepEqual(lab.faults, []);
  }
);
