/** What the tests begin with, and do. */
import { MessageLoop } from '@lumino/messaging';

import type { IClient, IDevice, IStatus } from '../base/protocol';
import { SharingModel } from '../sharing/sharingModel';
import {
  client,
  device,
  FakeApi,
  FakeCurrentKernel,
  FakeRunningCells,
  FakeVisibility,
  grant,
  status
} from './fakes';

/** Let seconds of the virtual time pass. */
export const pass = (seconds: number) =>
  jest.advanceTimersByTimeAsync(seconds * 1000);

/** Let all promises that can settle do so; moves no timer. */
export async function flushPromises(): Promise<void> {
  for (let i = 0; i < 10; i++) {
    await Promise.resolve();
  }
}

/** Wait for something to come true on the page. */
export async function waitUntil(condition: () => unknown): Promise<void> {
  const deadline = Date.now() + 4000;
  while (!condition()) {
    if (Date.now() > deadline) {
      throw new Error(`Not seen: ${condition}\n${document.body.innerHTML}`);
    }
    MessageLoop.flush();
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

/** A server whose client `mine` is that of `kernel`, and a page, in virtual time. */
export class Given {
  /** @param kernelId - of the notebook that is current */
  constructor(kernelId: string | null = 'kernel') {
    jest.useFakeTimers();
    this.current.kernelId = kernelId;
    this.sharing = this.own(new SharingModel(this));
  }

  readonly api = new FakeApi();
  readonly visibility = new FakeVisibility();
  readonly current = new FakeCurrentKernel();
  readonly runningCells = new FakeRunningCells();
  readonly sharing: SharingModel;

  /** Dispose of it in the end, before all that was there earlier. */
  own<T extends { dispose(): void }>(one: T): T {
    this._owned.unshift(one);
    return one;
  }

  /** The server sends a snapshot, and the kernel of `mine` becomes known. */
  async snapshot(status: IStatus): Promise<void> {
    this.api.socket.sendSnapshot(status);
    this.sharing.view('kernel');
    await flushPromises();
  }

  /** {@link snapshot} of these. */
  async clients(clients: IClient[], devices?: IDevice[]): Promise<void> {
    await this.snapshot(status(clients, devices));
  }

  /** {@link snapshot} of the client, and of another one that has the turn. */
  async show(
    mine: Partial<IClient>,
    other: Partial<IClient> = {},
    turn = grant({ client: 'other', seconds_left: 12 })
  ): Promise<void> {
    const clients = [client(mine), client({ id: 'other', ...other })];
    await this.clients(clients, [device({ grants: [turn] })]);
  }

  dispose(): void {
    this._owned.forEach(one => one.dispose());
    document.body.replaceChildren();
    jest.restoreAllMocks();
    jest.useRealTimers();
  }

  private readonly _owned: { dispose(): void }[] = [];
}

/** The same in real time, for what is drawn. */
export class GivenPage extends Given {
  constructor(kernelId: string | null = 'kernel') {
    super(kernelId);
    jest.useRealTimers();
  }
}
