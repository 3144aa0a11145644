/**
 * REST client of the Jupyter server that the browser tests use.
 *
 * GPUSHARE_UI_URL is the server with its token (http://host:port/?token=…).
 * Without GPUSHARE_UI_URL, the tests are skipped with a message.
 */
import { randomUUID } from 'node:crypto';

const { env } = process;

/** Options of tests. */
export const skip = env.GPUSHARE_UI_URL ? false : 'GPUSHARE_UI_URL is not set';

export const server = new URL(env.GPUSHARE_UI_URL ?? 'http://localhost/');
export const token = server.searchParams.get('token') ?? '';

/**
 * Longest time until an action of the coordinator is visible, in milliseconds.
 */
export const FOLLOWS_WITHIN = 60_000;

/**
 * Send a request to the server. Return the JSON of the answer, or null for an
 * empty answer.
 */
export async function rest(method, path, body) {
  const response = await fetch(new URL(path, server), {
    method,
    headers: { Authorization: `token ${token}` },
    body: body && JSON.stringify(body)
  });
  const text = await response.text();
  if (!response.ok) {
    throw new Error(`${method} ${path}: ${response.status} ${text}`);
  }
  return text === '' ? null : JSON.parse(text);
}

/** Return the snapshot of the coordinator. */
export const status = () => rest('GET', 'gpushare/api/status');

/** Change settings of the coordinator. */
export const configure = changes =>
  rest('PATCH', 'gpushare/api/config', changes);

/**
 * Set the length of turns and the pause that ends a turn, in seconds. A kernel
 * may pause for some seconds on a busy machine.
 */
export const setTurns = (seconds, idle = 60) =>
  configure({ time_quantum: seconds, idle_release: idle });

/** Poll until `probe` resolves with a true value, and return the value. */
export async function waitUntil(probe, what, within = FOLLOWS_WITHIN) {
  const deadline = Date.now() + within;
  for (;;) {
    const found = await probe();
    if (found) {
      return found;
    }
    if (Date.now() > deadline) {
      throw new Error(`After ${within} ms there is still no ${what}.`);
    }
    await new Promise(resolve => setTimeout(resolve, 50));
  }
}

/** Return the client of a notebook as soon as `holds(client)` is true. */
export function client(path, holds = () => true) {
  return waitUntil(async () => {
    const { clients } = await status();
    return clients.find(one => one.label === path && holds(one));
  }, `client ${path} as expected`);
}

const SETUP = `\
from pathlib import Path
from jupyter_gpushare.demo.gpu import Gpu
gpu = Gpu()
x = gpu.full(MILLIONS * 10**6, 1.0)
print("ready")`;

/** Return code that keeps the GPU busy until a call of `finish(path)`. */
const WORK = `\
while not Path("END").exists():
    gpu.work(x, 0.05, launch=0.005)
print("work done")`;

/** A notebook on the server, with its cleanup. */
export class Notebook {
  constructor(path) {
    this.path = path;
  }

  /**
   * Create a notebook.
   *
   * The first cell takes `millions` of numbers of device memory. The second
   * cell works until `finish` is called. `more` has the sources of further
   * cells. With `sources`, the notebook has only these cells. `kernel` is the
   * name of a kernelspec.
   */
  static async create(
    path,
    { millions = 10, more = [], sources, kernel = 'python3-gpushare' } = {}
  ) {
    const notebook = new Notebook(path);
    const cells = sources ?? [
      SETUP.replace('MILLIONS', millions),
      WORK.replace('END', notebook.end),
      ...more
    ];
    await rest('PUT', `api/contents/${path}`, {
      type: 'notebook',
      format: 'json',
      content: {
        nbformat: 4,
        nbformat_minor: 5,
        metadata: {
          kernelspec: { name: kernel, display_name: kernel, language: 'python' }
        },
        cells: cells.map(source => ({
          id: randomUUID().slice(0, 8),
          cell_type: 'code',
          source,
          metadata: {},
          outputs: [],
          execution_count: null
        }))
      }
    });
    return notebook;
  }

  /** Path of the file whose existence ends the work. */
  get end() {
    return `${this.path}.end`;
  }

  /** End the work of the working cell. */
  async finish() {
    await rest('PUT', `api/contents/${this.end}`, {
      type: 'file',
      format: 'text',
      content: ''
    });
  }

  /** Let the working cell work again when the cell is run again. */
  async rewind() {
    await rest('DELETE', `api/contents/${this.end}`).catch(() => null);
  }

  /** Return the notebook as on disk. */
  async saved() {
    return (await rest('GET', `api/contents/${this.path}`)).content;
  }

  /** Shut the kernel down, and remove the notebook. */
  async remove() {
    for (const session of await rest('GET', 'api/sessions')) {
      if (session.path === this.path) {
        await rest('DELETE', `api/sessions/${session.id}`);
      }
    }
    for (const path of [this.path, this.end]) {
      await rest('DELETE', `api/contents/${path}`).catch(() => null);
    }
  }
}
