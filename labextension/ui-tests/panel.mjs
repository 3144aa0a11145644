/** The side panel and the dialogs of its actions, as the tests use them. */

/** By roles and names only, as assistive technology finds them. */
export class Panel {
  constructor(lab) {
    this.lab = lab;
    this.page = lab.page;
    this.node = lab.page.getByRole('region', { name: 'GPU sharing' });
  }

  /** Show it by its command. */
  async open() {
    await this.lab.command('gpushare:open-panel');
    await this.node.waitFor();
  }

  /** The button of a client's row that goes to its notebook. */
  link(name) {
    return this.node.getByRole('button', { name, exact: true });
  }

  /** The button of a client's row that opens the menu of actions. */
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

  /** Choose an action of a client's row. */
  async act(name, label) {
    await this.menu(name).click();
    await this.page.getByRole('menuitem', { name: label }).click();
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

/** Whether an element is there and has the focus. */
export async function hasFocus(locator) {
  const nodes = await locator.all();
  return (
    nodes.length > 0 &&
    nodes[0].evaluate(node => node === document.activeElement)
  );
}
