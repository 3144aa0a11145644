/** Page object of the side panel and the dialogs of its actions, for tests. */

import { waitUntil } from './jupyter.mjs';

/** All elements are found by role and name, as assistive technology does. */
export class Panel {
  constructor(lab) {
    this.lab = lab;
    this.page = lab.page;
    this.node = lab.page.getByRole('region', { name: 'GPU sharing' });
  }

  /** Show the panel by its command. */
  async open() {
    await this.lab.command('gpushare:open-panel');
    await this.node.waitFor();
  }

  /** Return the button that opens a client's notebook. */
  link(name) {
    return this.node.getByRole('button', { name, exact: true });
  }

  /** Return the button that opens a client's menu of actions. */
  menu(name) {
    return this.node.getByRole('button', { name: `Actions for ${name}` });
  }

  row(name) {
    return this.node
      .getByRole('listitem')
      .filter({
        has: this.page.getByRole('button', { name: `Actions for ${name}` })
      })
      .last();
  }

  /** Choose an action of a client. */
  async act(name, label) {
    await this.menu(name).click();
    await this.page.getByRole('menuitem', { name: label }).click();
  }

  /**
   * Return the dialog of an action once its first field has the focus.
   *
   * JupyterLab sets this focus in an idle period after it has drawn the dialog.
   * Text that is typed earlier may go to the wrong field.
   */
  async dialog() {
    const dialog = this.page.getByRole('dialog');
    const field = dialog.locator('input, select').first();
    await waitUntil(() => hasFocus(field), 'focus on the first field');
    return dialog;
  }

  get timeline() {
    return this.node.getByRole('region', { name: 'Timeline' });
  }
}

/** Press Tab until an element has the focus. */
export async function tabTo(page, locator, key = 'Tab') {
  for (let presses = 0; presses < 150; presses++) {
    if (await hasFocus(locator)) {
      return;
    }
    await page.keyboard.press(key);
  }
  throw new Error(`${key} does not reach ${locator}.`);
}

/** Return whether an element exists and has the focus. */
export async function hasFocus(locator) {
  const nodes = await locator.all();
  return (
    nodes.length > 0 &&
    nodes[0].evaluate(node => node === document.activeElement)
  );
}
