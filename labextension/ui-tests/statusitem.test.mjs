/**
 * The status item in a real JupyterLab, as a user sees it.
 *
 * GPUSHARE_UI_URL        the server, with its token: http://host:port/?token=…
 *                        Without it the test is skipped.
 * GPUSHARE_UI_CELL       code that uses the GPU for some seconds; default cell.py
 * GPUSHARE_UI_ARTIFACTS  where screenshots go; default ui-tests/artifacts
 * CHROMIUM               the browser; default /usr/bin/chromium
 */
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { chromium } from 'playwright-core';

const here = name => fileURLToPath(new URL(name, import.meta.url));
const { env } = process;
const NOTEBOOK = `gpushare-ui-${process.pid}.ipynb`;
const ARTIFACTS = env.GPUSHARE_UI_ARTIFACTS ?? here('artifacts');
const CELL = env.GPUSHARE_UI_CELL ?? readFileSync(here('cell.py'), 'utf8');
const STARTS_WITHIN = 60_000;
const FOLLOWS_WITHIN = 20_000;

const options = {
  skip: env.GPUSHARE_UI_URL ? false : 'GPUSHARE_UI_URL is not set'
};
const server = new URL(env.GPUSHARE_UI_URL ?? 'http://localhost/');
const token = server.searchParams.get('token') ?? '';

let browser;
let page;

/** Call the server's REST interface. */
async function rest(method, path, body) {
  const response = await fetch(new URL(path, server), {
    method,
    headers: { Authorization: `token ${token}` },
    body: body && JSON.stringify(body)
  });
  if (!response.ok) {
    throw new Error(`${method} ${path}: ${response.status}`);
  }
  return response.status === 204 ? null : response.json();
}

const item = () => page.locator('.gpushare-StatusItem-button');

/** Wait until the status item's text matches. */
async function reads(pattern, timeout) {
  await item().filter({ hasText: pattern }).waitFor({ timeout });
}

async function screenshot(name) {
  await page.screenshot({ path: `${ARTIFACTS}/${name}.png` });
}

before(async () => {
  if (options.skip) {
    return;
  }
  mkdirSync(ARTIFACTS, { recursive: true });
  await rest('PUT', `api/contents/${NOTEBOOK}`, {
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
      cells: [
        {
          id: 'gpu',
          cell_type: 'code',
          source: CELL,
          metadata: {},
          outputs: [],
          execution_count: null
        }
      ]
    }
  });
  browser = await chromium.launch({
    executablePath: env.CHROMIUM ?? '/usr/bin/chromium'
  });
  page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
});

after(async () => {
  if (options.skip) {
    return;
  }
  if (page) {
    await screenshot('last');
  }
  await browser?.close();
  for (const session of await rest('GET', 'api/sessions')) {
    if (session.path === NOTEBOOK) {
      await rest('DELETE', `api/sessions/${session.id}`);
    }
  }
  await rest('DELETE', `api/contents/${NOTEBOOK}`);
});

test(
  'a shared notebook: idle, running while its cell uses the GPU, idle again',
  options,
  async () => {
    const lab = new URL(`lab/tree/${NOTEBOOK}`, server);
    lab.search = `?token=${token}&reset`;
    await page.goto(lab.href);
    await reads(/^GPU: idle( \(simulated\))?$/, STARTS_WITHIN);
    await screenshot('idle');

    const cell = page.locator('.jp-Notebook .jp-CodeCell').first();
    await cell.locator('.cm-content').click();
    await page.keyboard.press('Shift+Enter');
    await reads(/^GPU: running\b/, FOLLOWS_WITHIN);
    await screenshot('running');
    await reads(/^GPU: idle\b/, STARTS_WITHIN);

    const output = await cell.locator('.jp-OutputArea').innerText();
    assert.doesNotMatch(output, /Error|Traceback/);
  }
);

test(
  'the item explains itself to keyboard and screen reader',
  options,
  async () => {
    await item().focus();
    await page.keyboard.press('Enter');
    const dialog = page.getByRole('dialog', { name: 'GPU sharing' });
    await dialog.getByText('Quota').waitFor();
    assert.match(await dialog.innerText(), new RegExp(NOTEBOOK));
    await screenshot('details');
    await page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
    assert.ok(await item().evaluate(node => node === document.activeElement));
    assert.match(
      await item().getAttribute('aria-label'),
      /^GPU: idle.*Quota: /
    );
    const live = page.locator('.gpushare-StatusItem [aria-live=polite]');
    await live.filter({ hasText: /^GPU: idle/ }).waitFor({ state: 'attached' });
  }
);

test('it is hidden where there is no kernel to speak of', options, async () => {
  await page
    .locator('.lm-DockPanel-tabBar .lm-TabBar-addButton')
    .first()
    .click();
  await page.locator('.jp-Launcher-body').waitFor();
  await item().waitFor({ state: 'hidden', timeout: FOLLOWS_WITHIN });
});
