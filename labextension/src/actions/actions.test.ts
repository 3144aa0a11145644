/** Tests of the commands of actions: state, messages, dialogs and requests. */

import { Dialog, Notification } from '@jupyterlab/apputils';
import { CommandRegistry } from '@lumino/commands';

import { CommandIDs } from '../base/commands';
import type { IClient, IStatus } from '../base/protocol';
import { ApiError } from '../server/api';
import { client, CONFIG, status, type FakeApi } from '../testing/fakes';
import { GivenPage, waitUntil } from '../testing/given';
import { addCommands } from './actionCommands';

describe('the commands', () => {
  let given: GivenPage;
  let api: FakeApi;
  let commands: CommandRegistry;

  beforeEach(() => {
    given = new GivenPage();
    ({ api } = given);
    given.sharing.watch();
    commands = new CommandRegistry();
    addCommands(commands, { ...given, model: given.sharing });
  });

  afterEach(() => {
    Dialog.flush();
    Notification.manager.dismiss();
    given.dispose();
  });

  const show = async (mine: Partial<IClient>, more: Partial<IStatus> = {}) => {
    const others = [client({ id: 'other', own: false, user: 'bob' })];
    await given.snapshot({ ...status([client(mine), ...others]), ...more });
  };
  const messages = () =>
    Notification.manager.notifications.map(({ type, message }) => [
      type,
      message
    ]);
  const dialog = () => document.querySelector<HTMLElement>('.jp-Dialog');
  const field = (name: string) =>
    dialog()?.querySelector<HTMLInputElement>(
      `[id="gpushare-Form_${name}"]`
    ) as HTMLInputElement;
  const type = (name: string, text: string) => {
    const input = field(name);
    // React replaces the setter of each element. The prototype's setter
    // bypasses it, so React sees a change.
    const isText = input.tagName === 'INPUT';
    const option = [...input.querySelectorAll('option')].find(({ label }) =>
      label.startsWith(text)
    );
    Object.getOwnPropertyDescriptor(
      Object.getPrototypeOf(input),
      'value'
    )!.set!.call(input, isText ? text : option!.value);
    const event = isText ? 'input' : 'change';
    input.dispatchEvent(new Event(event, { bubbles: true }));
  };
  const accept = () =>
    dialog()!.querySelector<HTMLElement>('.jp-mod-accept')!.click();

  it('suspend the current kernel, and offer a resume only then', async () => {
    await show({});
    expect(commands.isVisible(CommandIDs.suspend)).toBe(true);
    expect(commands.isVisible(CommandIDs.resume)).toBe(false);
    expect(await commands.execute(CommandIDs.suspend)).toBe(true);
    expect(api.changes).toEqual([['suspend', 'mine']]);
    expect(messages()[0][1]).toMatch(/^train\.ipynb is suspended: .*resume/);

    await show({ phase: 'suspended', suspended: true });
    expect(commands.isVisible(CommandIDs.suspend)).toBe(false);
    expect(commands.isVisible(CommandIDs.resume)).toBe(true);
    expect(commands.isEnabled(CommandIDs.hold)).toBe(false);
    expect(commands.caption(CommandIDs.hold)).toMatch(/suspended/);
  });

  it('follow the state, and notify the views of the commands', async () => {
    await show({});
    const notified: (string | undefined)[] = [];
    commands.commandChanged.connect((_, { id }) => notified.push(id));
    expect(commands.isEnabled(CommandIDs.release)).toBe(false);
    expect(commands.caption(CommandIDs.release)).toMatch(/no turn/);
    await show({ phase: 'running' });
    expect(commands.isEnabled(CommandIDs.release)).toBe(true);
    expect(notified).toContain(CommandIDs.release);
    notified.length = 0;
    await show({ phase: 'running', gpu_seconds: 99 });
    expect(notified).toEqual([]);
  });

  it('show the whole of a text that a notification cuts', async () => {
    await show({});
    const refusal = `memory=1GiB is too little: ${'because, '.repeat(20)}end.`;
    api.refusal = new ApiError(refusal, 409, 'conflict');
    await commands.execute(CommandIDs.suspend);
    const [{ options }] = Notification.manager.notifications;
    const [all] = options.actions!;
    expect(all.label).toBe('Show All');
    all.callback({} as MouseEvent);
    await waitUntil(() => dialog()?.textContent?.includes(refusal));
    accept();
    await waitUntil(() => dialog() === null);

    api.refusal = new ApiError('short', 409, 'conflict');
    await commands.execute(CommandIDs.suspend);
    const last = Notification.manager.notifications.find(
      ({ message }) => message === 'short'
    )!;
    expect(last.options.actions).toEqual([]);
  });

  it('give the reason why no action is possible', async () => {
    await show({ may_change: false });
    expect(commands.isEnabled(CommandIDs.changeQuota)).toBe(false);
    expect(commands.caption(CommandIDs.changeQuota)).toMatch(/belongs to ada/);
    api.socket.send({
      type: 'unavailable',
      reason: 'unreachable',
      message: 'died'
    });
    expect(commands.isEnabled(CommandIDs.changeQuota)).toBe(false);
    expect(commands.caption(CommandIDs.changeQuota)).toMatch(
      /unavailable: died/
    );
    expect(commands.isEnabled(CommandIDs.changeSettings)).toBe(false);
    expect(await commands.execute(CommandIDs.changeQuota)).toBe(false);
    expect(messages()[0]).toEqual([
      'error',
      expect.stringMatching(/unavailable: died/)
    ]);
    given.current.set(null);
    expect(commands.caption(CommandIDs.hold)).toMatch(/No notebook/);
  });

  it('show the message of a refusal', async () => {
    await show({ phase: 'running' });
    api.refusal = new ApiError('hold: allowed are 0 to 600 s', 400, 'invalid');
    expect(await commands.execute(CommandIDs.hold, { seconds: 9999 })).toBe(
      false
    );
    expect(messages()).toEqual([['error', 'hold: allowed are 0 to 600 s']]);
  });

  it('hold for the time in the arguments, and end a hold', async () => {
    await show({});
    await commands.execute(CommandIDs.hold, { client: 'mine', seconds: 300 });
    await commands.execute(CommandIDs.hold, { client: 'mine', seconds: 0 });
    expect(api.changes).toEqual([
      ['hold', 'mine', 300],
      ['hold', 'mine', 0]
    ]);
    expect(messages().map(([, text]) => text)).toEqual([
      'train.ipynb no longer holds the GPU.',
      'train.ipynb keeps the GPU for 5 min, also between cells.'
    ]);
  });

  it('ask for the time of a hold', async () => {
    await show({}, { config: { ...CONFIG, max_hold: 200 } });
    const done = commands.execute(CommandIDs.hold);
    await waitUntil(() => field('seconds'));
    const chosen = dialog()!.querySelector('option:checked')!;
    expect(chosen.textContent).toBe('3 min 20 s');
    type('seconds', '1 min');
    accept();
    expect(await done).toBe(true);
    expect(api.changes).toEqual([['hold', 'mine', 60]]);
  });

  it('change a quota in a dialog that survives a refusal', async () => {
    await show({});
    const done = commands.execute(CommandIDs.changeQuota, { client: 'mine' });
    await waitUntil(() => field('share'));
    await waitUntil(() =>
      /GPU quota of train.ipynb/.test(dialog()!.textContent!)
    );
    const [hint] = field('share').getAttribute('aria-describedby')!.split(' ');
    expect(document.getElementById(hint)!.textContent).toBe('why');
    const label = field('share').labels![0];
    expect(label.textContent).toBe('share');

    type('share', '120%');
    await waitUntil(() => /Allowed for share/.test(dialog()!.textContent!));
    expect(field('share').getAttribute('aria-invalid')).toBe('true');
    accept();
    expect(document.activeElement).toBe(field('share'));
    expect(api.changes).toEqual([]);

    api.refusal = new ApiError('nothing is left', 409, 'conflict');
    type('share', '40%');
    accept();
    const alert = dialog()!.querySelector('[role=alert]')!;
    await waitUntil(() => alert.textContent === 'nothing is left');
    api.refusal = new ApiError('share: 0.3 is left', 409, 'conflict');
    accept();
    const error = document.getElementById('gpushare-Form_share__error')!;
    await waitUntil(() => error.textContent === 'share: 0.3 is left');
    expect(alert.textContent).toBe('');
    expect(document.activeElement).toBe(field('share'));
    expect(field('share').value).toBe('40%');

    api.refusal = null;
    type('share', '30%');
    accept();
    expect(await done).toBe(true);
    expect(dialog()).toBeNull();
    expect(api.changes).toEqual([['quota', 'mine', { share: 0.3 }]]);
  });

  it('read sizes with units, and remove a bound', async () => {
    await show({});
    const done = commands.execute(CommandIDs.changeQuota);
    await waitUntil(() => field('memory'));
    expect(field('memory').value).toBe('8 GiB');
    await waitUntil(() => /allocated 3 GiB/.test(dialog()!.textContent!));
    type('memory', '8 pounds');
    await waitUntil(() =>
      /Allowed: a size from 1 MiB/.test(dialog()!.textContent!)
    );
    type('memory', '');
    type('resident', '50%');
    accept();
    expect(await done).toBe(true);
    expect(api.changes).toEqual([
      ['quota', 'mine', { memory: null, resident: '50%' }]
    ]);
  });

  it('change nothing after the dialog is cancelled', async () => {
    await show({});
    const done = commands.execute(CommandIDs.changeQuota);
    await waitUntil(() => field('share'));
    type('share', '10%');
    dialog()!.querySelector<HTMLElement>('.jp-mod-reject')!.click();
    expect(await done).toBe(false);
    expect(api.changes).toEqual([]);
  });

  it('ask before the suspension of another user’s client', async () => {
    const viewer = { user: 'ada', admin: true };
    await show({}, { viewer });
    const about = { client: 'other' };
    const refused = commands.execute(CommandIDs.suspend, about);
    await waitUntil(dialog);
    await waitUntil(() =>
      /Suspend a notebook of bob\?/.test(dialog()!.textContent!)
    );
    dialog()!.querySelector<HTMLElement>('.jp-mod-reject')!.click();
    expect(await refused).toBe(false);
    expect(api.changes).toEqual([]);

    const confirmed = commands.execute(CommandIDs.suspend, about);
    await waitUntil(dialog);
    accept();
    expect(await confirmed).toBe(true);
    expect(api.changes).toEqual([['suspend', 'other']]);
  });

  it('offer the settings to admins only, and report the changes', async () => {
    await show({}, { viewer: { user: 'ada', admin: false } });
    expect(commands.isVisible(CommandIDs.changeSettings)).toBe(false);
    await show({}, { viewer: { user: 'ada', admin: true } });
    expect(commands.isEnabled(CommandIDs.changeSettings)).toBe(true);

    const done = commands.execute(CommandIDs.changeSettings);
    await waitUntil(() => field('time_quantum'));
    await waitUntil(() =>
      /until the coordinator stops/.test(dialog()!.textContent!)
    );
    type('time_quantum', '10');
    type('policy', 'fcfs');
    accept();
    expect(await done).toBe(true);
    expect(api.changes).toEqual([
      ['config', '', { time_quantum: 10, policy: 'fcfs' }]
    ]);
    expect(messages()[0][1]).toBe(
      'Changed until the coordinator stops: Time quantum = 10, Policy = fcfs.'
    );
  });
});
