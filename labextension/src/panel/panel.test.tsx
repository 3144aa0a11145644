/** Tests of the rendered side panel: devices, clients, actions, settings, and outages. */

import { CommandIDs } from '../base/commands';
import type { IDevice } from '../base/protocol';
import { client, device, GIB, grant, start, status } from '../testing/fakes';
import { waitUntil } from '../testing/given';
import { busy, GivenPanel } from '../testing/givenPanel';

describe('the side panel', () => {
  let given: GivenPanel;

  beforeEach(() => {
    given = new GivenPanel();
  });

  afterEach(() => {
    given.dispose();
  });

  it('shows running and waiting clients, their times, and the use of the device', async () => {
    await given.shows(busy(), 'Test GPU');
    const card = given.find('.gpushare-Device')!;
    expect(card.textContent).toContain('63 % busy');
    const [running, queue] = [...card.querySelectorAll('dd')];
    expect(running.textContent).toMatch(/a notebook of bob.*up to 20 s left/);
    expect(queue.querySelector('ol')!.textContent).toMatch(
      /train\.ipynb.*about 40 s/
    );
  });

  it.each<[string, Partial<IDevice>]>([
    [
      'holds it, 20 s left',
      { grants: [grant({ client: 'theirs', held: true, seconds_left: 20 })] }
    ],
    [
      'Not shared1 process · 3 GiB · of ada',
      { foreign_processes: [{ user: 'ada', memory: 3 * GIB }] }
    ],
    ['Locked1 process', { locked_by: [{ user: null }] }],
    [
      'Settingspolicy fcfs, time_quantum 5',
      { settings: { policy: 'fcfs', time_quantum: 5 } }
    ],
    ['simulated', { simulated: true }],
    ['Out of use: it fell off the bus', { failed: 'it fell off the bus' }]
  ])('shows "%s" for a device in that state only', async (some, is) => {
    await given.shows(busy(), 'Test GPU');
    expect(given.text()).not.toContain(some);
    await given.shows(busy(is), some);
  });

  it('groups devices by node, each with its own clients', async () => {
    const far = { id: 'far', node: 'gpu2', label: 'far.ipynb', user: 'ada' };
    const here = busy();
    await given.shows(
      {
        ...here,
        clients: [...here.clients, client({ ...far, phase: 'running' })],
        devices: [
          ...here.devices,
          device({ node: 'gpu2', grants: [grant({ client: 'far' })] })
        ],
        nodes: [
          { name: 'gpu1', message: 'The node gpu1 does not answer.' },
          { name: 'gpu2', message: '' }
        ]
      },
      'Node gpu2'
    );
    const [host, gpu1, gpu2] = given.findAll(
      'section[aria-labelledby*=devices]'
    );
    expect(host.textContent).toContain('Device');
    expect(host.textContent).not.toContain('far.ipynb');
    expect(gpu1.textContent).toBe('Node gpu1The node gpu1 does not answer.');
    expect(gpu2.textContent).toMatch(/Node gpu2.*Running.*far\.ipynb/);
    expect(gpu2.textContent).not.toContain('train.ipynb');
    const rows = given.findAll('.gpushare-Row').map(row => row.textContent);
    expect(rows.filter(row => row!.includes('on gpu2'))).toHaveLength(1);
  });

  it('shows the starts that wait for a node, each of which can be cancelled', async () => {
    given.add(CommandIDs.cancelStart);
    const waiting = start({ expected_wait: null, position: 1 });
    const next = start({ kernel: 'next', label: 'b.ipynb' });
    await given.shows(
      { ...status([], []), config: null, starts: [waiting, next] },
      'Waiting for a node (2)'
    );
    const items = given.findAll('.gpushare-Panel-start span');
    expect(items.map(item => item.textContent)).toEqual([
      'train.ipynb: #1',
      'b.ipynb: #2, about 3 min'
    ]);
    expect(items[0].title).toBe('the node has no room for the kernel');
    given.button('Cancel the start of b.ipynb')!.click();
    expect(given.executed).toEqual([
      [CommandIDs.cancelStart, { kernel: 'next' }]
    ]);
    await given.shows(busy(), 'Test GPU');
    expect(given.text()).not.toContain('Waiting for a node');
  });

  it('shows the nodes beside a host that does not answer', async () => {
    const far = client({ id: 'far', node: 'gpu2' });
    const state = { ...status([far], [device({ node: 'gpu2' })]) };
    const nodes = [
      { name: '', message: 'The coordinator does not answer.' },
      { name: 'gpu2', message: '' }
    ];
    await given.shows({ ...state, config: null, nodes }, 'Node gpu2');
    const [host] = given.findAll('section[aria-labelledby*=devices]');
    expect(host.textContent).toBe('Devices The coordinator does not answer.');
  });

  it('shows the problems of the coordinator above its devices', async () => {
    const coordinator = { problems: ['policy is unknown', 'the disk is full'] };
    await given.shows({ ...busy(), coordinator }, 'Test GPU');
    const hints = given.findAll('.gpushare-Panel-hint');
    expect(hints[0].textContent).toBe('policy is unknown\nthe disk is full');
  });

  it('shows the nodes without a coordinator on the host, and starts none', async () => {
    const far = client({ id: 'far', node: 'gpu2' });
    const state = { ...status([far], [device({ node: 'gpu2' })]) };
    await given.shows(
      { ...state, config: null, nodes: [{ name: 'gpu2', message: '' }] },
      'Node gpu2'
    );
    expect(given.text()).not.toContain('Time quantum');
    expect(given.api.historyCalls).toEqual([]);
  });

  it('shows resident and evicted memory, also as a text', async () => {
    await given.shows(busy({ memory_used: 3.5 * GIB }), 'Test GPU');
    const bar = given.find('[role=img]')!;
    expect(bar.getAttribute('aria-label')).toBe(
      'Memory: 3.5 GiB of 16 GiB used, 1.5 GiB moved out. ' +
        'train.ipynb: 1.5 GiB. a notebook of bob: 2 GiB. ' +
        'train.ipynb: 1.5 GiB moved out'
    );
    expect(
      given.findAll('.gpushare-Memory-number').map(n => n.textContent)
    ).toEqual(['1', '2', '1']);
    const card = given.find('.gpushare-Memory-card')!;
    const beyond = given.find('.gpushare-Memory-beyond')!;
    expect([card, beyond].map(({ style }) => Number(style.flexGrow))).toEqual([
      16 * GIB,
      1.5 * GIB
    ]);
  });

  it('shows context memory where it is known', async () => {
    await given.shows(busy({ memory_used: 5 * GIB }), 'Test GPU');
    expect(given.text()).not.toContain('contexts and code');
    await given.shows(
      busy(
        { memory_used: 5 * GIB, context_memory: GIB },
        { context_memory: 0.5 * GIB }
      ),
      '3 GiB, 1.5 GiB moved out, 512 MiB more for contexts and code'
    );
    expect(given.find('[role=img]')!.getAttribute('aria-label')).toContain(
      'Contexts and code: 1 GiB. Other use: 512 MiB. train.ipynb'
    );
    await given.shows(
      busy({}, { allocated: 0, resident: 0, context_memory: 0.5 * GIB }),
      '512 MiB for contexts and code'
    );
    expect(given.text()).not.toContain('no GPU memory');
  });

  it('names the GPU of a MIG slice in the title of the device', async () => {
    const title = () =>
      given.find('.gpushare-Device-name')!.getAttribute('title');
    await given.shows(busy(), 'Test GPU');
    expect(title()).toBe('GPU-1');
    await given.shows(
      busy({ name: 'Test GPU MIG 1g.10gb', parent: 'GPU-0' }),
      'Test GPU MIG 1g.10gb'
    );
    expect(title()).toBe('GPU-1, a MIG slice of GPU-0');
  });

  it('shows the client of the memory under the pointer', async () => {
    await given.shows(busy({ memory_used: 3.5 * GIB }), 'Test GPU');
    const card = given.find('.gpushare-Memory-card')!;
    card.getBoundingClientRect = () => ({ left: 100, width: 160 }) as DOMRect;
    const titleAt = (clientX: number) => {
      // jsdom has no pointer events, but React reads only the type of an event.
      card.dispatchEvent(
        new MouseEvent('pointermove', { clientX, bubbles: true })
      );
      return card.title;
    };
    expect(titleAt(105)).toBe('train.ipynb: 1.5 GiB');
    expect(titleAt(130)).toBe('a notebook of bob: 2 GiB');
    expect(titleAt(200)).toBe('');
  });

  it('renders the end of a long queue only while the queue is open', async () => {
    const queue = ['mine', 'theirs', 'a', 'b', 'c'];
    await given.shows(busy({ queue }), '1 more');
    const more = given.find('details')! as HTMLDetailsElement;
    expect(more.querySelector('ol')).toBeNull();
    more.open = true;
    await waitUntil(
      () => more.querySelectorAll('ol[start="5"] > li').length === 1
    );
  });

  it('lists own clients first, and other users’ clients without their labels', async () => {
    const limit = 'at most 1 block/s';
    const limited = { limits: [{ since: 7, text: limit }], limit_text: limit };
    await given.shows(busy({}, limited), 'Test GPU');
    const since = new Date(7000).toLocaleTimeString();
    expect(given.findAll('h3').map(node => node.textContent)).toEqual(
      expect.arrayContaining(['Yours (1)', 'Others (1)'])
    );
    const [mine, theirs] = given.findAll('.gpushare-Row');
    expect(mine.textContent).toContain('#1 in queue · about 40 s');
    expect(mine.textContent).toContain('3 GiB, 1.5 GiB moved out');
    expect(mine.textContent).toContain(
      `share 50 %, limit 90 %, memory 8 GiB · at most 1 block/s, since ${since}`
    );
    expect(theirs.textContent).toContain('a notebook of bob');
    expect(theirs.querySelector('button')).toBeNull();
  });

  it('shows the progress of a row as text, whatever the program sends', async () => {
    const text = '<b>epoch</b>: 3 of 4';
    const progress = { progress: { done: 3, total: 4 }, progress_text: text };
    await given.shows(busy({}, progress), 'Test GPU');
    const [mine, theirs] = given.findAll('.gpushare-Row');
    expect(mine.textContent).toContain(text);
    expect(mine.querySelector('b')).toBeNull();
    expect(mine.querySelector('progress')!.value).toBe(0.75);
    expect(theirs.querySelector('progress')).toBeNull();
  });

  it('opens the notebook of a row', async () => {
    given.add(CommandIDs.openDocument);
    await given.shows(busy(), 'Test GPU');
    given.button('train.ipynb')!.click();
    expect(given.executed).toEqual([
      [CommandIDs.openDocument, { client: 'mine' }]
    ]);
  });

  it('offers the actions of a client’s state, and returns the focus', async () => {
    // The commands that appear change no other part of the row.
    await given.shows(busy({}, { expected_wait: null }), 'Test GPU');
    given.add(...Object.values(CommandIDs));
    await waitUntil(
      () => given.button('Actions for train.ipynb') !== undefined
    );
    const anchor = given.button('Actions for train.ipynb')!;
    anchor.click();
    const items = () =>
      [...document.querySelectorAll('.lm-Menu-itemLabel')].map(
        node => node.textContent
      );
    await waitUntil(() => items().length > 0);
    expect(items()).toEqual([
      CommandIDs.changeQuota,
      CommandIDs.hold,
      CommandIDs.suspend,
      CommandIDs.evict
    ]);
    document
      .querySelector('.lm-Menu')!
      .dispatchEvent(
        new KeyboardEvent('keydown', { keyCode: 27, bubbles: true } as object)
      );
    await waitUntil(() => document.querySelector('.lm-Menu') === null);
    expect(document.activeElement).toBe(anchor);
  });

  it('has the settings for all users, and their change for admins', async () => {
    given.add(CommandIDs.changeSettings);
    await given.shows(busy(), 'interactive');
    expect(given.text()).toContain('automatic');
    expect(given.button('Change…')).toBeUndefined();
    await given.shows(
      { ...busy(), viewer: { user: 'root', admin: true } },
      'Change…'
    );
    given.button('Change…')!.click();
    expect(given.executed.map(([id]) => id)).toEqual([
      CommandIDs.changeSettings
    ]);
  });

  it('explains the first step while no coordinator is needed', async () => {
    given.api.socket.send({
      type: 'unavailable',
      reason: 'not_running',
      message: 'none'
    });
    await waitUntil(() =>
      given.text().includes('No kernel shares the GPU at the moment.')
    );
    expect(given.text()).toContain('Python 3 (shared GPU)');
    expect(given.find('.gpushare-Panel-unavailable')).toBeNull();
  });

  it('reports that the service is unavailable, and keeps the last view dimmed', async () => {
    await given.shows(busy(), 'Test GPU');
    given.api.socket.send({
      type: 'unavailable',
      reason: 'unreachable',
      message: 'The coordinator was stopped.'
    });
    await waitUntil(() =>
      given.text().includes('The coordinator was stopped.')
    );
    expect(given.find('[data-dimmed=true]')!.textContent).toContain('Test GPU');
    await given.shows(busy(), 'Test GPU');
    await waitUntil(() => given.find('[data-dimmed=false]') !== null);
  });

  it('shows the last snapshot in an outage, also one that came while hidden', async () => {
    await given.shows(busy(), 'Test GPU');
    given.panel.hide();
    given.sharing.watch(); // as an open notebook does
    given.api.socket.sendSnapshot(busy({ name: 'Another GPU' }));
    given.api.socket.send({
      type: 'unavailable',
      reason: 'unreachable',
      message: 'The coordinator was stopped.'
    });
    given.panel.show();
    await waitUntil(() =>
      given.text().includes('The coordinator was stopped.')
    );
    expect(given.text()).toContain('Another GPU');
    expect(given.text()).not.toContain('Test GPU');
  });

  it('reports a server without GPUs, without clients, and without the extension', async () => {
    await given.shows(
      status([], []),
      'There is no GPU to share on this machine.'
    );
    await given.shows(status([]), 'No kernel shares the GPU yet.');
    given.api.socket.send({
      type: 'unavailable',
      reason: 'no_extension',
      message: '404'
    });
    await waitUntil(() =>
      given.text().includes('This Jupyter server has no GPU sharing.')
    );
  });

  it('changes nothing and requests nothing while hidden', async () => {
    await given.shows(busy(), 'Test GPU');
    const socket = given.api.socket;
    given.panel.hide();
    expect(socket.isClosed).toBe(true);
    const asked = given.api.historyCalls.length;
    // A render that React has begun may still finish, but the seconds stand
    // still.
    let before = '';
    for (let i = 0; i < 5 && given.panel.node.innerHTML !== before; i++) {
      before = given.panel.node.innerHTML;
      await new Promise(resolve => setTimeout(resolve, 1100));
    }
    expect(given.panel.node.innerHTML).toBe(before);
    expect(given.api.historyCalls).toHaveLength(asked);
    given.panel.show();
    await given.shows(busy({ name: 'Another GPU' }), 'Another GPU');
    given.visibility.set(true);
    expect(given.api.socket.isClosed).toBe(true);
  });

  it('leaves rows with the same content untouched', async () => {
    await given.shows(busy(), 'Test GPU');
    const row = given.findAll('.gpushare-Row')[0];
    const observer = new MutationObserver(() => undefined);
    observer.observe(row, { subtree: true, childList: true, attributes: true });
    await given.shows(busy({ name: 'Another GPU' }), 'Another GPU');
    expect(observer.takeRecords()).toEqual([]);
    observer.disconnect();
  });
});
