/**
 * Menus with the actions of one client, for a row of the panel and for the
 * toolbar.
 */

import { MenuSvg } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import { VirtualElement } from '@lumino/virtualdom';
import type { Menu } from '@lumino/widgets';

import { ACTIONS, CommandIDs, type IClientArgs } from '../base/commands';
import type { IClientLabel } from '../sharing/clientLabels';

/** A client and the commands that apply to the client now. */
export interface IActionList {
  readonly label: IClientLabel;
  readonly actions: ReadonlyArray<string>;
}

/** A button that opens a menu and shows whether the menu is open. */
export interface IMenuButton {
  readonly node: HTMLElement;
  isOpen: boolean;
  focus(): void;
}

/**
 * A menu whose items show their caption, which is a description or the reason
 * why the item is disabled.
 */
class ActionMenu extends MenuSvg {
  constructor(commands: CommandRegistry) {
    super({ commands, renderer: new Renderer() });
  }
}

class Renderer extends MenuSvg.Renderer {
  renderItem(data: Menu.IRenderData): VirtualElement {
    const { tag, attrs, children, renderer } = super.renderItem(data);
    const title = data.item.caption;
    return new VirtualElement(tag, { ...attrs, title }, children, renderer);
  }
}

/** Open the menu of a row below the right end of the row's button. */
export function openRowMenu(
  commands: CommandRegistry,
  row: IActionList,
  anchor: HTMLElement
): void {
  const menu = new ActionMenu(commands);
  menu.title.label = row.label.name;
  const args = { client: row.label.id };
  row.actions.forEach(command => menu.addItem({ command, args }));
  menu.aboutToClose.connect(() => {
    // The focus moves before the command runs, because its dialog returns the
    // focus to the present owner.
    anchor.focus();
    requestAnimationFrame(() => menu.dispose());
  });
  const { right, bottom } = anchor.getBoundingClientRect();
  menu.open(right, bottom, { horizontalAlignment: 'right' });
}

/**
 * Create the action of a button: open a menu for a client below the button.
 *
 * The focus returns to the button when the menu closes, except after a click
 * outside the menu.
 */
export function toolbarMenu(
  commands: CommandRegistry,
  args: () => IClientArgs
): (chip: IMenuButton) => void {
  return chip => {
    const menu = new ActionMenu(commands);
    menu.addClass('gpushare-ToolbarMenu');
    const add = (command: string, args: IClientArgs) => {
      if (commands.hasCommand(command)) {
        menu.addItem({ command, args: { ...args } });
      }
    };
    const { changeSettings, openPanel } = CommandIDs;
    ACTIONS.forEach(command => add(command, args()));
    menu.addItem({ type: 'separator' });
    add(changeSettings, {});
    add(openPanel, {});
    menu.aboutToClose.connect(() => {
      chip.isOpen = false;
      // A click outside the menu closes the menu and moves the focus.
      if (menu.node.contains(document.activeElement)) {
        chip.focus();
      }
      // The menu executes the chosen command after this signal.
      requestAnimationFrame(() => menu.dispose());
    });
    const { left, bottom } = chip.node.getBoundingClientRect();
    menu.open(left, bottom);
    chip.isOpen = true;
  };
}
