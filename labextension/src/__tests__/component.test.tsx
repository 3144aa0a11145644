import { StatusBar } from '@jupyterlab/statusbar';
import { Widget } from '@lumino/widgets';

import { StatusItem } from '../components/statusitem';
import type { SharingModel } from '../model/sharing';
import { StatusItemModel } from '../model/statusitem';
import {
  client,
  device,
  runningStatus,
  status,
  type FakeApi,
  type FakeCurrent
} from './fakes';
import { sharedKernel, trans } from './given';
import { until } from './page';

describe('the status item in a status bar', () => {
  let api: FakeApi;
  let current: FakeCurrent;
  let sharing: SharingModel;
  let model: StatusItemModel;
  let statusBar: StatusBar;
  let item: StatusItem;
  let activations: number;

  beforeEach(() => {
    const shared = sharedKernel(null);
    ({ api, current, sharing } = shared);
    model = new StatusItemModel({ ...shared, trans });
    activations = 0;
    item = new StatusItem({ model, trans, onActivate: () => activations++ });
    statusBar = new StatusBar();
    statusBar.registerStatusItem('gpu', {
      item,
      isActive: () => model.isShown,
      activeStateChanged: model.stateChanged
    });
    Widget.attach(statusBar, document.body);
  });

  afterEach(() => {
    model.dispose();
    sharing.dispose();
    statusBar.dispose();
    document.body.textContent = '';
  });

  function button(): HTMLButtonElement | null {
    return item.node.querySelector('button');
  }

  async function seen(text: string): Promise<void> {
    await until(() => !item.isHidden && button()?.textContent === text);
  }

  it('is not there until a shared kernel is current, and goes with it', async () => {
    expect(item.isHidden).toBe(true);
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(12));
    await seen('GPU: running · up to 12 s left');
    current.set(null);
    expect(item.isHidden).toBe(true);
  });

  it('follows the state', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(
      status(
        [client({ phase: 'waiting', queue_position: 2, expected_wait: 40 })],
        [device({ simulated: true })]
      )
    );
    await seen('GPU: #2 in queue · about 40 s (simulated)');
    expect(button()!.dataset.phase).toBe('waiting');
    api.socket.send({ type: 'away', reason: 'stopped', message: '' });
    await seen('GPU: sharing service away');
    expect(button()!.dataset.phase).toBe('away');
  });

  it('explains itself in tooltip and label', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(status([client()]));
    await seen('GPU: idle');
    expect(button()!.title.split('\n')).toEqual([
      'GPU: idle',
      'Label: train.ipynb',
      'Quota: share 50 %, limit 90 %, memory 8 GiB, online',
      'Memory: 3 GiB allocated, 1.5 GiB on the device',
      'So far: 12 s on the GPU, 30 s waiting',
      'Test GPU: nobody running'
    ]);
    expect(button()!.getAttribute('aria-label')).toMatch(
      /^GPU: idle\. Label: train\.ipynb\. Quota: .*Test GPU: nobody running$/
    );
  });

  it('tells a screen reader politely, and without the seconds', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(runningStatus(12));
    await seen('GPU: running · up to 12 s left');
    const live = item.node.querySelector('[aria-live=polite]')!;
    expect(live.getAttribute('role')).toBe('status');
    expect(button()!.contains(live)).toBe(false);
    await until(() => live.textContent === 'GPU: running');
  });

  it('draws the icon, hidden from screen readers by the label', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(status([client()]));
    await seen('GPU: idle');
    expect(button()!.querySelector('svg .jp-icon3')).not.toBeNull();
  });

  it('is a button', async () => {
    current.set('kernel');
    api.socket.sendSnapshot(status([client()]));
    await seen('GPU: idle');
    button()!.focus();
    expect(document.activeElement).toBe(button());
    button()!.click(); // What Enter and the space bar do to a button.
    expect(activations).toBe(1);
  });
});
