/**
 * Browser side of `jupyter gpushare bench panel`.
 *
 * The program measures the cost of a panel update for the page's main thread,
 * in a real JupyterLab. GPUSHARE_BENCH_SOCKET is the coordinator's socket. The
 * output is one line of JSON.
 */
import { setTimeout as sleep } from 'node:timers/promises';

import { serve } from './server.mjs';

const { env } = process;
const UPDATES = Number(env.GPUSHARE_BENCH_UPDATES);
/**
 * Milliseconds between two updates, and length of the windows without updates.
 */
const INTERVAL = 1000 / Number(env.GPUSHARE_BENCH_RATE);
const IDLE_WINDOWS = 50;
const CATEGORIES = [
  'devtools.timeline',
  'disabled-by-default-devtools.timeline'
];

const server = await serve('lab', [], env.GPUSHARE_BENCH_SOCKET);
let lab = null;
try {
  // The modules read the URL of the server when loaded.
  env.GPUSHARE_UI_URL = server.url;
  const { Lab } = await import('./lab.mjs');
  const { rest } = await import('./jupyter.mjs');
  lab = await Lab.open('lab?reset', { reducedMotion: 'no-preference' });
  const { browser, page } = lab;
  await lab.command('gpushare:open-panel');
  await page
    .getByRole('button', { name: /notebook-0\.ipynb/ })
    .first()
    .waitFor();
  const idle = await traced(browser, page, () =>
    sleep(IDLE_WINDOWS * INTERVAL)
  );
  const busy = await traced(browser, page, async () => {
    await rest('PATCH', 'gpushare/api/config', { updates: UPDATES });
    await sleep((UPDATES + 4) * INTERVAL);
  });
  const { arrivals } = busy;
  // The server skips snapshots for a browser that is too busy.
  if (arrivals.length < UPDATES / 2) {
    throw new Error(`${arrivals.length} of ${UPDATES} updates have arrived.`);
  }
  const pauses = Array.from(
    { length: IDLE_WINDOWS },
    (_, number) => idle.began + number * INTERVAL
  );
  console.log(
    JSON.stringify({
      arrived: arrivals.length,
      script_ms: quantiles(windows(busy.scripts, arrivals)),
      main_ms: quantiles(windows(busy.tasks, arrivals)),
      idle_ms: quantiles(windows(idle.tasks, pauses))
    })
  );
} catch (error) {
  console.error(error);
  console.error(`The server's log ends with:\n${server.log()}`);
  process.exitCode = 1;
} finally {
  await lab?.close();
  await server.stop();
}

/**
 * Return the work of the page's main thread during `action`, in milliseconds.
 *
 * The result has the outermost tasks and scripts with their processor time, and
 * the arrival times of socket messages.
 */
async function traced(browser, page, action) {
  await browser.startTracing(page, { categories: CATEGORIES });
  await action();
  const trace = String(await browser.stopTracing());
  const { traceEvents: events } = JSON.parse(trace);
  const mains = events.filter(
    one => one.name === 'thread_name' && one.args.name === 'CrRendererMain'
  );
  const count = ({ pid, tid }) =>
    events.filter(one => one.pid === pid && one.tid === tid).length;
  // Prerendered pages have a main thread too, which is almost idle.
  const main = mains.reduce((a, b) => (count(b) > count(a) ? b : a));
  const here = events.filter(
    one => one.pid === main.pid && one.tid === main.tid
  );
  const tasks = outermost(here, ['RunTask']);
  return {
    tasks,
    scripts: outermost(here, ['FunctionCall', 'RunMicrotasks']),
    began: Math.min(...tasks.map(one => one.at)),
    arrivals: begins(
      here
        .filter(one => one.name === 'WebSocketReceive')
        .map(one => one.ts / 1000)
    )
  };
}

/** Return the events with these names that are within no other such event. */
function outermost(events, names) {
  const found = [];
  let end = 0;
  for (const { name, ts, dur, tdur } of events.sort((a, b) => a.ts - b.ts)) {
    if (names.includes(name) && tdur !== undefined && ts >= end) {
      found.push({ at: ts / 1000, took: tdur / 1000 });
      end = ts + dur;
    }
  }
  return found;
}

/**
 * Return the arrival times of messages, each of which comes in several parts.
 */
function begins(parts) {
  const sorted = [...parts].sort((a, b) => a - b);
  return sorted.reduce(
    (starts, at) =>
      at - (starts.at(-1) ?? -Infinity) > INTERVAL / 2
        ? [...starts, at]
        : starts,
    []
  );
}

/** Return the total time of tasks in the windows that begin at `starts`. */
function windows(tasks, starts) {
  const sums = starts.map(() => 0);
  for (const { at, took } of tasks) {
    const window = starts.findLastIndex(start => start <= at + took);
    if (window >= 0 && at < starts[window] + INTERVAL) {
      sums[window] += took;
    }
  }
  return sums;
}

function quantiles(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = part => sorted[Math.floor(part * (sorted.length - 1))] ?? null;
  return { p50: at(0.5), p95: at(0.95) };
}
