/**
 * The Jupyter server that the browser tests use, over its REST interface.
 *
 * GPUSHARE_UI_URL     the server, with its token: http://host:port/?token=…
 *                     Without it the tests are skipped, and say so.
 */
import { randomUUID } from 'node:crypto';

const { env } = process;

/** For the tests' options. */
export const skip = env.GPUSHARE_UI_URL ? false : 'GPUSHARE_UI_URL is not set';

export const server = new URL(env.GPUSHARE_UI_URL ?? 'http://localhost/');
export const token = server.searchParams.get('token') ?? '';

/** How long what the coordinator does may take to be seen, in milliseconds. */
export const FOLLOWS_WITHIN = 20_000;

/** Call the server; the answer's JSON, null if it is empty. */
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

/** What the coordinator tells. */
export const status = () => rest('GET', 'gpushare/api/status');

/** Change settings of the coordinator. */
export const configure = changes =>
  rest('PATCH', 'gpushare/api/config', changes);

/** Let one at a time have a turn of so many seconds, first come, first served. */
export const takeTurns = (seconds, idle = 0.25) =>
  configure({
    policy: 'fcfs',
    sharing: 'exclusive',
    time_quantum: seconds,
    idle_release: idle
  });

/** Poll until `probe` resolves with something true, and return that. */
export async function until(probe, what, within = FOLLOWS_WITHIN) {
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

/** The coordinator's client of a notebook, once `holds(client)` is true. */
export function client(path, holds = () => true) {
  return until(async () => {
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

/** Code that keeps the GPU busy until `finish(path)` is called. */
const WORK = `\
while not Path("END").exists():
    gpu.work(x, 0.05, launch=0.005)
print("work done")`;

/** A notebook on the server, and what is needed to clean up behind it. */
export class Notebook {
  constructor(path) {
    this.path = path;
  }

  /**
   * Make one whose first cell takes `millions` of numbers of device memory, and
   * whose second one works until `finish` is called; `more`: the sources of
   * others. Or one of `sources` only.
   */
  static async create(path, { millions = 10, more = [], sources } = {}) {
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
          kernelspec: {
            name: 'python3-gpushare',
            display_name: 'Python 3 (shared GPU)',
            language: 'python'
          }
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

  /** The file whose being there ends the work. */
  get end() {
    return `${this.path}.end`;
  }

  /** Let the working cell come to its end. */
  async finish() {
    await rest('PUT', `api/contents/${this.end}`, {
      type: 'file',
      format: 'text',
      content: ''
    });
  }

  /** Let the working cell work when it is run again. */
  async rewind() {
    await rest('DELETE', `api/contents/${this.end}`).catch(() => null);
  }

  /** The notebook as it is on disk. */
  async saved() {
    return (await rest('GET', `api/contents/${this.path}`)).content;
  }

  /** End its kernel, and remove it. */
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
