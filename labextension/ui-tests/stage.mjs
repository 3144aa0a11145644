/** What the tests of a file share: notebooks, and pages in browsers. */
import { after, before, test } from 'node:test';

import { Notebook, skip } from './jupyter.mjs';
import { Lab } from './lab.mjs';

export class Stage {
  /** @param name - of the last picture of the first page, after `last-` */
  constructor(name) {
    this.name = name;
    this.labs = [];
    this.notebooks = [];
  }

  /** Unless skipped, do `prepare` before the tests of the file, and `restore` after them. */
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

  /** {@link Notebook.create}; it is removed in the end. */
  async notebook(path, options) {
    const notebook = await Notebook.create(path, options);
    this.notebooks.push(notebook);
    return notebook;
  }

  /** {@link Lab.open}; it is closed in the end. */
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
