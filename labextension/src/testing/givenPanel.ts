/** The rendered side panel, which tests of its parts share. */

import { CommandRegistry } from '@lumino/commands';
import { Widget } from '@lumino/widgets';

import type { IClient, IDevice, IStatus } from '../base/protocol';
import { SettingsModel } from '../base/settings';
import { HistoryModel } from '../history/historyModel';
import { Panel } from '../panel/panel';
import { PanelModel } from '../panel/panelModel';
import { client, device, GIB, grant, status } from './fakes';
import { GivenPage, waitUntil } from './given';

/** A page with the side panel, at the time 0. */
export class GivenPanel extends GivenPage {
  constructor() {
    super();
    jest.spyOn(performance, 'now').mockReturnValue(0); // texts have times left
    const history = this.own(new HistoryModel(this));
    this.model = new PanelModel({
      ...this,
      history,
      settings: this.settings
    });
    this.panel = this.own(new Panel(this.model, this.commands));
    Widget.attach(this.panel, document.body);
  }

  readonly settings = new SettingsModel();
  readonly commands = new CommandRegistry();
  readonly model: PanelModel;
  readonly panel: Panel;

  /** Commands that have been executed, with their arguments. */
  readonly executed: [string, unknown][] = [];

  /** Add commands that only record their execution. */
  add(...ids: string[]): void {
    for (const id of ids) {
      this.commands.addCommand(id, {
        label: id,
        describedBy: { args: {} },
        execute: args => this.executed.push([id, args])
      });
    }
  }

  text(): string {
    return this.panel.node.textContent ?? '';
  }

  find(selector: string): HTMLElement | null {
    return this.panel.node.querySelector<HTMLElement>(selector);
  }

  findAll(selector: string): HTMLElement[] {
    return [...this.panel.node.querySelectorAll<HTMLElement>(selector)];
  }

  /** Find a button by its label, or else by its text. */
  button(label: string): HTMLElement | undefined {
    return this.findAll('button').find(
      node => (node.getAttribute('aria-label') ?? node.textContent) === label
    );
  }

  /** Send a snapshot, and wait until the panel contains a text. */
  async shows(state: IStatus, text: string): Promise<void> {
    this.api.socket.sendSnapshot(state);
    await waitUntil(() => this.text().includes(text));
  }
}

/**
 * Return a snapshot in which `mine` waits for the client `theirs` of another
 * user.
 *
 * @param changes - changes of the device
 * @param mine - changes of `mine`
 */
export function busy(
  changes: Partial<IDevice> = {},
  mine: Partial<IClient> = {}
): IStatus {
  return status(
    [
      client({
        phase: 'waiting',
        queue_position: 1,
        expected_wait: 40,
        ...mine
      }),
      client({
        id: 'theirs',
        label: '',
        user: 'bob',
        phase: 'running',
        own: false,
        may_change: false,
        allocated: 2 * GIB,
        resident: 2 * GIB
      })
    ],
    [
      device({
        grants: [grant({ client: 'theirs', seconds_left: 20 })],
        queue: ['mine'],
        utilisation: 0.63,
        ...changes
      })
    ]
  );
}
