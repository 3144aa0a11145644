/**
 * Browser programs, run against a separate Jupyter server for each front end:
 *
 * node ui-tests/with-server.mjs [FILE.mjs…] [-- SERVER OPTION…]
 *
 * Without a file, all tests run. A file `*.test.mjs` runs as tests, another
 * file as a program. A file whose name begins with `notebook` gets a `jupyter
 * notebook`, and each other file a `jupyter lab`. All processes end with the
 * program.
 */
import { readdirSync } from 'node:fs';
import { basename, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { run, serve } from './server.mjs';

const here = fileURLToPath(new URL('.', import.meta.url));
const given = process.argv.slice(2);
const end = given.includes('--') ? given.indexOf('--') : given.length;
const options = given.slice(end + 1);
const files = given.slice(0, end).map(name => resolve(name));
if (files.length === 0) {
  const all = readdirSync(here).filter(name => name.endsWith('.test.mjs'));
  files.push(...all.sort().map(name => resolve(here, name)));
}

let running = null;
let stopped = false;
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.once(signal, () => {
    stopped = true;
    running?.kill('SIGTERM');
  });
}

/**
 * Run the files one after the other on one server, and return the highest exit
 * status.
 */
async function runOn(frontEnd, files) {
  if (files.length === 0 || stopped) {
    return stopped ? 1 : 0;
  }
  const server = await serve(frontEnd, options);
  const env = { GPUSHARE_UI_URL: server.url };
  const tests = files.filter(name => name.endsWith('.test.mjs'));
  const programs = files.filter(name => !tests.includes(name));
  const calls = programs.map(name => [name]);
  if (tests.length > 0) {
    calls.unshift(['--test', '--test-concurrency=1', ...tests]);
  }
  let worst = 0;
  try {
    for (const call of calls) {
      running = run('node', call, env);
      worst = Math.max(worst, await running.ended);
    }
  } finally {
    running = null;
    if (worst !== 0) {
      console.error(`The server's log ends with:\n${server.log()}`);
    }
    await server.stop();
  }
  return worst;
}

const isNotebook = name => basename(name).startsWith('notebook');
const statuses = [
  await runOn(
    'lab',
    files.filter(name => !isNotebook(name))
  ),
  await runOn('notebook', files.filter(isNotebook))
];
process.exitCode = Math.max(...statuses);
