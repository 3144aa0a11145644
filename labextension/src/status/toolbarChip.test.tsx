/** Tests of the rendered toolbar item: visibility, texts, width and menu. */

import { CommandRegistry } from '@lumino/commands';
import { Widget } from '@lumino/widgets';

import { CommandIDs } from '../base/commands';
import type { IClient } from '../base/protocol';
import { addCommands } from '../actions/actionCommands';
import { toolbarMenu } from '../actions/actionMenu';
import { client } from '../testing/fakes';
import { GivenPage, waitUntil } from '../testing/given';
import { StatusItemModel } from './statusItemModel';
import { ToolbarChip } from './toolbarChip';

describe('the chip in a notebook toolbar', () => {
  let given: GivenPage;
  let model: StatusItemModel;
  let chip: ToolbarChip;

  beforeEach(() => {
    given = new GivenPage();
    model = given.own(new StatusItemModel(given));
    const commands = new CommandRegistry();
    addCommands(commands, { ...given, model: given.sharing });
    chip = given.own(
      new ToolbarChip({
        model,
        announces: true,
        onActivate: toolbarMenu(commands, () => ({ client: 'mine' }))
      })
    );
    Widget.attach(chip, document.body);
  });

  afterEach(() => given.dispose());

  const show = async (mine: Partial<IClient>, clients = [client(mine)]) => {
    await given.clients(clients);
    await new Promise(resolve => setTimeout(resolve, 0));
  };
  const button = () => chip.node.querySelector('button')!;
  const menu = () => document.querySelector<HTMLElement>('.lm-Menu');

  it('shows the state of shared kernels only', async () => {
    expect(chip.isHidden).toBe(true);
    await show({ phase: 'waiting', queue_position: 2, expected_wait: 40 });
    await waitUntil(() => button()?.textContent === 'GPU: #2 in queue');
    expect(chip.isHidden).toBe(false);
    expect(button().getAttribute('aria-label')).toBe(
      'GPU: #2 in queue · about 40 s'
    );
    await show({}, []);
    expect(chip.isHidden).toBe(true);
  });

  it('stays visible without a coordinator, but does not appear without one', async () => {
    const unavailable = {
      type: 'unavailable',
      reason: 'unreachable',
      message: 'died'
    };
    given.api.socket.send(unavailable);
    expect(chip.isHidden).toBe(true);
    await show({});
    await waitUntil(() => !chip.isHidden);
    given.api.socket.send(unavailable);
    expect(chip.isHidden).toBe(false);
    await waitUntil(() => button().textContent === 'GPU: unavailable');
    expect(button().getAttribute('aria-label')).toBe(
      'GPU: sharing service unavailable'
    );
  });

  it('has room for each of its texts', async () => {
    await show({ state_text: 'idle, moved off · memory comes back' });
    await waitUntil(button);
    const text = button().querySelector<HTMLElement>('[data-texts]')!;
    const texts = text.dataset.texts!.split('\n');
    expect(text.textContent).toBe('GPU: idle, moved off');
    expect(texts).toContain('GPU: idle, moved off');
    expect(texts).toContain('GPU: unavailable');
  });

  it('is hidden by the setting', async () => {
    await show({});
    await waitUntil(() => !chip.isHidden);
    model.isEnabled = false;
    expect(chip.isHidden).toBe(true);
  });

  it('opens a menu of actions, and gets the focus back', async () => {
    await show({ phase: 'running' });
    await waitUntil(button);
    expect(button().getAttribute('aria-haspopup')).toBe('menu');
    button().focus();
    button().dispatchEvent(
      new KeyboardEvent('keydown', { key: 'ArrowDown', bubbles: true })
    );
    await waitUntil(menu);
    await waitUntil(() => button().getAttribute('aria-expanded') === 'true');
    const items = [...menu()!.querySelectorAll('[role=menuitem]')];
    const item = (command: string) =>
      items.find(node => node.getAttribute('data-command') === command)!;
    expect(item(CommandIDs.release).textContent).toBe('Give Up the GPU Turn');
    expect(item(CommandIDs.release).getAttribute('title')).toMatch(
      /next client runs/
    );
    menu()!.focus();
    menu()!.dispatchEvent(
      new KeyboardEvent('keydown', { keyCode: 27, bubbles: true })
    );
    await waitUntil(() => menu() === null);
    expect(document.activeElement).toBe(button());
    await waitUntil(() => button().getAttribute('aria-expanded') === 'false');
  });
});
