/** State and steps that tests of models and of views share. */
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

/** Advance the virtual time by seconds. */
export const pass = (seconds: number) =>
  jest.advanceTimersByTimeAsync(seconds * 1000);

/** Run all promises that can be resolved now, without timers. */
export async function flushPromises(): Promise<void> {
  for (let i = 0; i < 10; i++) {
    await Promise.resolve();
  }
}

/** Poll until a condition holds on the page. */
export async function waitUntil(condition: () => unknown): Promise<void> {
  const deadline = Date.now() + 20000;
  while (!condition()) {
    if (Date.now() > deadline) {
      throw new Error(`Not seen: ${condition}\n${document.body.innerHTML}`);
    }
    MessageLoop.flush();
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}

/**
 * A server and a page in virtual time. The kernel `kernel` belongs to the
 * client `mine`.
 */
export class Given {
  /** @param kernelId - kernel of the current notebook */
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

  /** Dispose of an object at the end, before the objects that came earlier. */
  own<T extends { dispose(): void }>(one: T): T {
    this._owned.unshift(one);
    return one;
  }

  /** Deliver a snapshot, and let the model look up the client of `kernel`. */
  async snapshot(status: IStatus): Promise<void> {
    this.api.socket.sendSnapshot(status);
    this.sharing.view('kernel');
    await flushPromises();
  }

  /** Deliver a {@link snapshot} with these clients. */
  async clients(clients: IClient[], devices?: IDevice[]): Promise<void> {
    await this.snapshot(status(clients, devices));
  }

  /**
   * Deliver a {@link snapshot} with `mine` and another client that has a turn.
   */
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

/** {@link Given} in real time, for tests of rendered nodes. */
export class GivenPage extends Given {
  constructor(kernelId: string | null = 'kernel') {
    super(kernelId);
    jest.useRealTimers();
  }
}
