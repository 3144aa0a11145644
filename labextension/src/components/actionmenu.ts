import { MenuSvg } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import { VirtualElement } from '@lumino/virtualdom';
import type { Menu } from '@lumino/widgets';

/** A menu whose items tell what they do, or why they cannot be chosen now. */
export class ActionMenu extends MenuSvg {
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
