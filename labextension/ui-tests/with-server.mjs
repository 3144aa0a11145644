/**
 * Run the browser tests against a JupyterLab of their own, on the simulated
 * device: `node ui-tests/with-server.mjs [JUPYTERLAB OPTION…]`. It needs `jupyter` on PATH and the
 * package installed; it leaves nothing running.
 */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const READY_WITHIN = 60_000;
const STOPS_WITHIN = 10_000;

const folder = mkdtempSync(join(tmpdir(), 'gpushare-ui-'));
const token = randomBytes(16).toString('hex');
const port = await freePort();
const url = `http://127.0.0.1:${port}/?token=${token}`;

/** A port that was free a moment ago. */
function freePort() {
  return new Promise(resolve => {
    const probe = createServer();
    probe.listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

function run(command, args, env) {
  const child = spawn(command, args, {
    env: { ...process.env, ...env },
    stdio: 'inherit'
  });
  child.ended = new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('exit', code => resolve(code ?? 1));
  });
  return child;
}

async function ready(server) {
  const deadline = Date.now() + READY_WITHIN;
  while (Date.now() < deadline && server.exitCode === null) {
    try {
      await fetch(`http://127.0.0.1:${port}/api?token=${token}`);
      return;
    } catch {
      await new Promise(resolve => setTimeout(resolve, 100));
    }
  }
  throw new Error('JupyterLab did not start; see its log above.');
}

/** The process id of the coordinator that the server has started, if any. */
async function coordinator() {
  try {
    const path = `gpushare/api/status?token=${token}`;
    const response = await fetch(`http://127.0.0.1:${port}/${path}`);
    return (await response.json()).coordinator.pid;
  } catch {
    return null;
  }
}

const server = run(
  'jupyter',
  [
    'lab',
    '--no-browser',
    '--allow-root',
    '--ip=127.0.0.1',
    `--port=${port}`,
    '--ServerApp.port_retries=0',
    `--IdentityProvider.token=${token}`,
    `--ServerApp.root_dir=${folder}`,
    '--GpuShare.simulate=True',
    ...process.argv.slice(2)
  ],
  // A coordinator, lab settings and workspaces of its own, whatever else runs.
  {
    GPUSHARE_SOCKET: join(folder, 'coordinator.sock'),
    JUPYTERLAB_SETTINGS_DIR: join(folder, '.settings'),
    JUPYTERLAB_WORKSPACES_DIR: join(folder, '.workspaces')
  }
);

let status = 1;
let tests = null;
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.once(signal, () => (tests ?? server).kill('SIGTERM'));
}
try {
  await ready(server);
  const test = fileURLToPath(new URL('statusitem.test.mjs', import.meta.url));
  tests = run('node', ['--test', test], { GPUSHARE_UI_URL: url });
  status = await tests.ended;
} finally {
  // It outlives the server by design, but not this test.
  const pid = await coordinator();
  server.kill('SIGTERM');
  const timer = setTimeout(() => server.kill('SIGKILL'), STOPS_WITHIN);
  await server.ended;
  clearTimeout(timer);
  try {
    if (pid) {
      process.kill(pid, 'SIGTERM');
    }
  } catch {
    // It has ended by itself.
  }
  rmSync(folder, { recursive: true, force: true });
}
process.exitCode = status;
