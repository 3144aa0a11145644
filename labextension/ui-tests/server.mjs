/**
 * A separate Jupyter server on the simulated device.
 *
 * Folder, settings and coordinator belong to this server only, and end with the
 * server. `jupyter` must be on PATH, with the package installed.
 */
import { spawn } from 'node:child_process';
import {
  closeSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';

const READY_WITHIN = 60_000;
const STOPS_WITHIN = 10_000;
/** Length of the log in an error message. */
const LINES = 60;
/** Settings that the user of the front end has changed before. */
const SETTINGS = {
  '@jupyterlab/apputils-extension/notification': {
    fetchNews: 'false',
    checkForUpdates: false
  }
};

/** Name of the kernelspec whose kernels run on the nodes `n1` and `n2`. */
export const NODE_KERNEL = 'python3-nodes';

const NODES = ['n1', 'n2'];

/**
 * Return options of a server whose nodes are folders below `folder`. A node is
 * lost as long as there is a file `NODE.lost`, and `NODE.pid` has the process
 * of its node agent.
 */
function nodeOptions(folder) {
  const steps = [
    `cd ${folder}`,
    'test ! -e {node}.lost || { echo no route to the host >&2; exit 1; }',
    'mkdir -pm 700 .run/{node}; echo $$ > {node}.pid',
    'export XDG_STATE_HOME=$PWD/.run/{node} GPUSHARE_SIMULATE=1',
    'export GPUSHARE_SOCKET=$XDG_STATE_HOME/c.sock; exec "$@"'
  ];
  return [
    `engine=sh -c '${steps.join('; ')}' sh {agent}`,
    ...NODES.map(node => `nodes=${node}`),
    ...NODES.map(node => `addresses=${node}=127.0.0.1`),
    'node_timeout=1'
  ].map(option => `--GpuShareCluster.${option}`);
}

/** Add the kernelspec whose kernels run on the nodes to the folder `path`. */
function addNodeKernel(path) {
  const folder = join(path, 'kernels', NODE_KERNEL);
  mkdirSync(folder, { recursive: true });
  const provisioner = { provisioner_name: 'gpushare-remote-provisioner' };
  const spec = {
    argv: ['python', '-m', 'ipykernel_launcher', '-f', '{connection_file}'],
    display_name: 'Python 3 (shared GPU, nodes)',
    language: 'python',
    metadata: {
      kernel_provisioner: provisioner,
      supported_encryption: ['curve']
    }
  };
  writeFileSync(join(folder, 'kernel.json'), JSON.stringify(spec));
}

/**
 * Start a server.
 *
 * @param frontEnd - `lab` or `notebook`
 * @param options - further options of the command line
 * @param socket - socket of an existing coordinator; by default, the server
 *   starts a coordinator
 * @returns `url` (with its token), `log()` (the end of the log), and `stop()`,
 *   which resolves after the end of all processes
 */
export async function serve(frontEnd, options = [], socket = '') {
  const folder = mkdtempSync(join(tmpdir(), 'gpushare-ui-'));
  const logFile = join(folder, '.run', 'server.log');
  mkdirSync(join(folder, '.run'), { mode: 0o700 });
  const settings = join(folder, '.run', 'settings');
  for (const [plugin, values] of Object.entries(SETTINGS)) {
    const file = join(settings, `${plugin}.jupyterlab-settings`);
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, JSON.stringify(values));
  }
  addNodeKernel(join(folder, '.run', 'jupyter'));
  const app = frontEnd === 'lab' ? 'LabApp' : 'JupyterNotebookApp';
  const server = run(
    'jupyter',
    [
      frontEnd,
      '--no-browser',
      '--allow-root',
      '--log-level=WARN',
      '--ip=127.0.0.1',
      '--port=0',
      `--ServerApp.root_dir=${folder}`,
      // Commands arrange documents and themes. The tested actions use mouse and
      // keyboard.
      `--${app}.expose_app_in_browser=True`,
      '--GpuShare.simulate=True',
      ...nodeOptions(folder),
      ...options
    ],
    {
      GPUSHARE_SOCKET: socket || join(folder, '.run', 'coordinator.sock'),
      GPUSHARE_LOCK_DIR: join(folder, '.run', 'locks'),
      GPUSHARE_SIM_STATE: join(folder, '.run', 'devices'),
      XDG_STATE_HOME: join(folder, '.run', 'state'),
      JUPYTER_PATH: [join(folder, '.run', 'jupyter'), process.env.JUPYTER_PATH]
        .filter(Boolean)
        .join(delimiter),
      JUPYTER_RUNTIME_DIR: join(folder, '.run', 'runtime'),
      JUPYTERLAB_SETTINGS_DIR: settings,
      JUPYTERLAB_WORKSPACES_DIR: join(folder, '.run', 'workspaces')
    },
    logFile
  );
  let about = null;
  const log = () =>
    readFileSync(logFile, 'utf8').split('\n').slice(-LINES).join('\n');

  /** Stop the server, and the coordinator, which outlives servers by design. */
  async function stop() {
    const pid = socket || !about ? null : await coordinatorOf(about);
    server.kill('SIGTERM');
    const timer = setTimeout(() => server.kill('SIGKILL'), STOPS_WITHIN);
    await server.ended;
    clearTimeout(timer);
    try {
      if (pid) {
        process.kill(pid, 'SIGTERM');
      }
    } catch {
      // The process has ended by itself.
    }
    rmSync(folder, { recursive: true, force: true });
  }

  try {
    about = await answers(join(folder, '.run', 'runtime'), server);
  } catch (error) {
    console.error(log());
    await stop();
    throw error;
  }
  return { url: `${about.url}?token=${about.token}`, log, stop };
}

/**
 * Start a program.
 *
 * `ended` resolves with the exit status. Output goes to `logFile`, if given.
 */
export function run(command, args, env = {}, logFile = null) {
  const output = logFile ? openSync(logFile, 'a') : 'inherit';
  const child = spawn(command, args, {
    env: { ...process.env, ...env },
    stdio: ['ignore', output, output]
  });
  if (logFile) {
    closeSync(output);
  }
  child.ended = new Promise(resolve => {
    child.on('error', error => {
      console.error(error.message);
      resolve(127);
    });
    child.on('exit', code => resolve(code ?? 1));
  });
  return child;
}

/** Return the `url` and `token` that the server writes when it listens. */
async function answers(folder, server) {
  const deadline = Date.now() + READY_WITHIN;
  while (Date.now() < deadline && server.exitCode === null) {
    try {
      const [name] = readdirSync(folder).filter(one =>
        /^jpserver-\d+\.json$/.test(one)
      );
      const about = JSON.parse(readFileSync(join(folder, name), 'utf8'));
      await fetch(`${about.url}api?token=${about.token}`);
      return about;
    } catch {
      await new Promise(resolve => setTimeout(resolve, 100));
    }
  }
  throw new Error('The Jupyter server did not start.');
}

async function coordinatorOf({ url, token }) {
  try {
    const response = await fetch(`${url}gpushare/api/status?token=${token}`);
    return (await response.json()).coordinator.pid;
  } catch {
    return null;
  }
}
