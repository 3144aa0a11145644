/** Test of a kernel on a node, and of the loss of its node under an open page. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';

import { rest } from './jupyter.mjs';
import { shows } from './lab.mjs';
import { Panel } from './panel.mjs';
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
  'the panel and the status item show a kernel on a node, and actions reach it',
  async () => {
    await lab.ready(PATH);
    await lab.runsTo(0, /True on n1/);
    await lab.reads(/^GPU: idle · on n1 \(simulated\)$/);
    const panel = new Panel(lab);
    await panel.open();
    await panel.node.getByRole('heading', { name: 'Node n1' }).waitFor();
    await shows(panel.row(PATH), /on n1/);
    await lab.screenshot('node');
    await panel.act(PATH, 'Suspend GPU Use');
    await lab.reads(/^GPU: suspended · on n1 \(simulated\)$/);
    await shows(panel.row(PATH), /Suspended/);
    await panel.act(PATH, 'Resume GPU Use');
    await lab.reads(/^GPU: idle · on n1 \(simulated\)$/);
  }
);

stage.test(
  'an open page goes on with a kernel on another node, and shows why',
  async () => {
    await lab.runsTo(0, /True on n1/);
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
    await lab.reads(/^GPU: idle · on n2 \(simulated\)$/);
    await lab.screenshot('lost-node');
    assert.deepEqual(lab.faults, []);
  }
);
