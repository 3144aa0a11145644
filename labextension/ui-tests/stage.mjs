/** Fixture of a test file: its notebooks and browser pages, closed at the end. */
import { after, before, test } from 'node:test';

import { Notebook, skip } from './jupyter.mjs';
import { Lab } from './lab.mjs';

export class Stage {
  /** @param name - part after `last-` of the name of the last screenshot */
  constructor(name) {
    this.name = name;
    this.labs = [];
    this.notebooks = [];
  }

  /**
   * Run `prepare` before the tests of the file and `restore` after the tests,
   * unless the tests are skipped.
   */
  setUp(prepare, restore = () => {}) {
    if (!skip) {
      before(prepare);
      after(() => this.clear());
      after(restore);
    }
  }

  test(name, body) {
    test(name, { skip }, body);
  }

  /** Call {@link Notebook.create}. The notebook is removed at the end. */
  async notebook(path, options) {
    const notebook = await Notebook.create(path, options);
    this.notebooks.push(notebook);
    return notebook;
  }

  /** Call {@link Lab.open}. The page is closed at the end. */
  async open(path, options, prepare) {
    const lab = await Lab.open(path, options, prepare);
    this.labs.push(lab);
    return lab;
  }

  async clear() {
    await this.labs[0]?.screenshot(`last-${this.name}`);
    for (const lab of this.labs) {
      await lab.close();
    }
    for (const notebook of this.notebooks) {
      await notebook.remove();
    }
  }
}
