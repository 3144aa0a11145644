/**
 * Tests of the rendered status item: visibility, explanation and
 * announcements.
 */

import { StatusBar } from '@jupyterlab/statusbar';
import { Widget } from '@lumino/widgets';

import { client, runningStatus, status } from '../testing/fakes';
import { GivenPage, waitUntil } from '../testing/given';
import { StatusItem } from './statusItem';
import { StatusItemModel } from './statusItemModel';

describe('the status item in a status bar', () => {
  let given: GivenPage;
  let item: StatusItem;
  let activations: number;

  beforeEach(() => {
    given = new GivenPage(null);
    const model = given.own(new StatusItemModel(given));
    activations = 0;
    item = new StatusItem(model, () => activations++);
    const statusBar = given.own(new StatusBar());
    statusBar.registerStatusItem('gpu', {
      item,
      isActive: () => model.isShown,
      activeStateChanged: model.stateChanged
    });
    Widget.attach(statusBar, document.body);
  });

  afterEach(() => given.dispose());

  const button = () => item.node.querySelector('button')!;
  const seen = (text: string) =>
    waitUntil(() => !item.isHidden && button()?.textContent === text);

  it('is visible while a shared kernel is current, and has an explanation', async () => {
    expect(item.isHidden).toBe(true);
    given.current.set('kernel');
    given.api.socket.sendSnapshot(status([client()]));
    await seen('GPU: idle');
    expect(button().dataset.phase).toBe('idle');
    expect(button().title).toMatch(/^GPU: idle\nLabel: train\.ipynb\nQuota: /);
    expect(button().getAttribute('aria-label')).toMatch(
      /^GPU: idle\. Label: train\.ipynb\. Quota: .*Test GPU: no client running$/
    );
    // The label hides the icon from screen readers.
    expect(button().querySelector('svg .jp-icon3')).not.toBeNull();
    button().focus();
    expect(document.activeElement).toBe(button());
    button().click(); // Enter and the space bar cause a click on a button.
    expect(activations).toBe(1);
    given.current.set(null);
    expect(item.isHidden).toBe(true);
  });

  it('announces the state to a screen reader politely, without the seconds', async () => {
    given.current.set('kernel');
    given.api.socket.sendSnapshot(runningStatus(12));
    await seen('GPU: running · up to 12 s left');
    const live = item.node.querySelector('[aria-live=polite]')!;
    expect(live.getAttribute('role')).toBe('status');
    expect(button().contains(live)).toBe(false);
    await waitUntil(() => live.textContent === 'GPU: running');
  });
});
