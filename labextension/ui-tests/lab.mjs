/**
 * Page object of a front end in a real browser, for tests.
 *
 * GPUSHARE_UI_ARTIFACTS is the folder of screenshots, by default
 * ui-tests/artifacts. CHROMIUM is the browser, by default /usr/bin/chromium.
 */
import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { chromium } from 'playwright-core';

import { FOLLOWS_WITHIN, server, token } from './jupyter.mjs';

const { env } = process;
const ARTIFACTS =
  env.GPUSHARE_UI_ARTIFACTS ??
  fileURLToPath(new URL('artifacts', import.meta.url));

/** Longest start of a front end or a kernel, in milliseconds. */
export const STARTS_WITHIN = 60_000;

export const THEMES = {
  light: 'JupyterLab Light',
  dark: 'JupyterLab Dark'
};

/** Wait until an element exists and contains or matches the text. */
export const shows = (locator, text, options) =>
  locator.filter({ hasText: text }).waitFor(options);

/** JupyterLab, or a page of Notebook 7, in its own browser. */
export class Lab {
  constructor(browser, page) {
    this.browser = browser;
    this.page = page;
    /** Errors of this extension's scripts, which the tests check at the end. */
    this.faults = [];
    page.on('pageerror', ({ stack }) => {
      if (/jupyter-gpushare/.test(stack)) {
        this.faults.push(stack);
      }
    });
    page.setDefaultTimeout(FOLLOWS_WITHIN);
  }

  /**
   * Open a page, for example `lab?reset` or `notebooks/a.ipynb`.
   *
   * @param options - options of the browser page, such as the viewport
   * @param prepare - function that gets the page before the page loads anything
   */
  static async open(path, options = {}, prepare = () => {}) {
    mkdirSync(ARTIFACTS, { recursive: true });
    const browser = await chromium.launch({
      executablePath: env.CHROMIUM ?? '/usr/bin/chromium'
    });
    const page = await browser.newPage({
      viewport: { width: 1280, height: 800 },
      reducedMotion: 'reduce',
      ...options
    });
    const lab = new Lab(browser, page);
    const url = new URL(path, server);
    url.searchParams.set('token', token);
    await prepare(page);
    await page.goto(url.href, { timeout: STARTS_WITHIN });
    await page.waitForFunction(
      () => globalThis.jupyterapp?.restored.then(() => true),
      null,
      { timeout: STARTS_WITHIN }
    );
    return lab;
  }

  async close() {
    await this.browser.close();
  }

  /**
   * Keep a screenshot of the page, or of a part of the page, as a test
   * artefact.
   */
  async screenshot(name, part = this.page) {
    await part.screenshot({ path: `${ARTIFACTS}/${name}.png` });
  }

  /** Keep screenshots in light and dark. The theme is light afterwards. */
  async screenshots(name, part = this.page) {
    for (const theme of ['dark', 'light']) {
      await this.theme(theme);
      await this.screenshot(`${name}-${theme}`, part);
    }
  }

  /** Change the theme to `light` or `dark`, as the settings menu does. */
  async theme(theme) {
    const name = THEMES[theme];
    await this.command('apputils:change-theme', { theme: name });
    await this.page.waitForFunction(
      name =>
        document.body.dataset.jpThemeName === name &&
        document.getElementById('jupyterlab-splash') === null,
      name
    );
  }

  /** Run a command of the front end as soon as its plugin is loaded. */
  async command(id, args = {}) {
    await this.page.waitForFunction(
      id => globalThis.jupyterapp.commands.hasCommand(id),
      id
    );
    await this.page.evaluate(
      async ([id, args]) => {
        await globalThis.jupyterapp.commands.execute(id, args);
      },
      [id, args]
    );
  }

  /**
   * Open a notebook, or bring a notebook to the front, with its kernel started.
   */
  async notebook(path) {
    await this.command('docmanager:open', { path });
    await this.ready(path);
  }

  /** Wait until a notebook is in front, with its kernel started. */
  async ready(path) {
    await this.page.waitForFunction(
      path => {
        const { context, sessionContext } =
          globalThis.jupyterapp.shell.currentWidget ?? {};
        return (
          context?.path === path &&
          sessionContext.session?.kernel?.status === 'idle'
        );
      },
      path,
      { timeout: STARTS_WITHIN }
    );
    await this.cells.first().waitFor();
  }

  /** Cells of the notebook in front. */
  get cells() {
    return this.page.locator(
      '.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell'
    );
  }

  /** Run a cell of the notebook in front by the keyboard. */
  async run(index) {
    await this.cells.nth(index).locator('.cm-content').click();
    await this.page.keyboard.press('Control+Enter');
  }

  /** Bring a notebook to the front, and run one of its cells. */
  async runIn(path, index) {
    await this.notebook(path);
    await this.run(index);
  }

  /** Wait until the working cell has finished. */
  async worked() {
    await shows(this.output(1), 'work done');
  }

  /** Run a cell, and wait until its output matches. */
  async runsTo(index, pattern) {
    await this.run(index);
    await shows(this.output(index), pattern, { timeout: STARTS_WITHIN });
  }

  output(index) {
    return this.cells.nth(index).locator('.jp-OutputArea');
  }

  /** Item of the status bar. */
  get statusItem() {
    return this.page
      .locator('#jp-main-statusbar')
      .getByRole('button', { name: /^GPU: / });
  }

  /** Chip in the toolbar of the notebook in front. */
  get chip() {
    return this.page
      .locator(
        '.jp-NotebookPanel:not(.lm-mod-hidden) .jp-NotebookPanel-toolbar'
      )
      .getByRole('button', { name: /^GPU: / });
  }

  /** Wait until the status item's text matches. */
  async reads(pattern, timeout = FOLLOWS_WITHIN) {
    const item = this.page.locator('.gpushare-StatusItem-button');
    await shows(item, pattern, { timeout });
  }

  /**
   * Record each text and each width (in pixels) of an element from now on,
   * however short. Resolve with a function that returns both lists.
   */
  async watch(locator) {
    const key = `seen${Math.random()}`;
    await locator.evaluate((node, key) => {
      const seen = (globalThis[key] = { texts: [], widths: [] });
      const note = (list, value) => {
        if (value !== list.at(-1)) {
          list.push(value);
        }
      };
      const noteText = () => note(seen.texts, node.textContent.trim());
      const noteWidth = () => note(seen.widths, node.clientWidth);
      noteText();
      noteWidth();
      new MutationObserver(noteText).observe(node, {
        characterData: true,
        childList: true,
        subtree: true
      });
      new globalThis.ResizeObserver(noteWidth).observe(node);
    }, key);
    return () => this.page.evaluate(key => globalThis[key], key);
  }
}
