/** What the tests begin with. */
import {
  nullTranslator,
  type TranslationBundle
} from '@jupyterlab/translation';

import { SharingModel } from '../model/sharing';
import { StatusItemModel } from '../model/statusitem';
import type { IClient, IDevice, IGrant, IStatus } from '../protocol';
import {
  client,
  device,
  FakeApi,
  FakeCurrent,
  FakeRuns,
  FakeVisibility,
  grant,
  settle,
  status
} from './fakes';

export const trans: TranslationBundle = nullTranslator.load('');

/** Seconds of the virtual time. */
export const clock = () => Date.now() / 1000;

/** Let seconds of the virtual time pass. */
export const pass = (seconds: number) =>
  jest.advanceTimersByTimeAsync(seconds * 1000);

export interface IShared {
  readonly api: FakeApi;
  readonly current: FakeCurrent;
  readonly visibility: FakeVisibility;
  readonly sharing: SharingModel;
}

/**
 * The client of `kernel` is `mine`; the server has told nothing yet.
 *
 * @param kernelId - of the notebook that is current
 */
export function sharedKernel(
  kernelId: string | null = 'kernel',
  options: Partial<SharingModel.IOptions> = {}
): IShared {
  const api = new FakeApi();
  api.clients = { kernel: 'mine' };
  const current = new FakeCurrent();
  current.kernelId = kernelId;
  const visibility = new FakeVisibility();
  const sharing = new SharingModel({ api, visibility, ...options });
  return { api, current, visibility, sharing };
}

/** The status item's model, in virtual time, before any kernel is current. */
export class GivenStatusItem {
  constructor() {
    jest.useFakeTimers();
    this.shared.api.clients.second = 'other';
    this.model = new StatusItemModel({ ...this.shared, trans });
    this.model.stateChanged.connect(() => this.changes++);
  }

  readonly shared = sharedKernel(null, { random: () => 1 });
  readonly model: StatusItemModel;
  /** How many times the model has changed. */
  changes = 0;

  /** A notebook with the shared kernel is current, and this is what is known. */
  async snapshot(status: IStatus): Promise<void> {
    this.shared.current.set('kernel');
    this.shared.api.socket.sendSnapshot(status);
    await settle();
  }

  /** {@link snapshot} of these. */
  async clients(clients: IClient[], devices?: IDevice[]): Promise<void> {
    await this.snapshot(status(clients, devices));
  }

  dispose(): void {
    this.model.dispose();
    this.shared.sharing.dispose();
    expect(jest.getTimerCount()).toBe(0);
    jest.useRealTimers();
  }
}

/** A document whose kernel shares with one that has the turn, in virtual time. */
export class GivenDocument {
  constructor() {
    jest.useFakeTimers();
    const { current: kernel, ...shared } = sharedKernel('kernel', { clock });
    this.options = { ...shared, kernel, runs: new FakeRuns(), clock };
    this.options.sharing.watch();
  }

  /** Of the models of its waits. */
  readonly options: Omit<IShared, 'current'> & {
    readonly kernel: FakeCurrent;
    readonly runs: FakeRuns;
    readonly clock: () => number;
  };

  /** The server tells of its client, and of the other one. */
  async show(
    mine: Partial<IClient>,
    other: Partial<IClient> = {},
    more: Partial<IStatus> = {},
    turn: Partial<IGrant> = {}
  ): Promise<void> {
    const grants = [grant({ client: 'other', seconds_left: 12, ...turn })];
    const clients = [client(mine), client({ id: 'other', ...other })];
    const all = status(clients, [device({ grants })]);
    const { api, sharing } = this.options;
    api.socket.sendSnapshot({ ...all, ...more });
    sharing.view('kernel');
    await settle();
  }

  dispose(): void {
    this.options.sharing.dispose();
    jest.useRealTimers();
  }
}
