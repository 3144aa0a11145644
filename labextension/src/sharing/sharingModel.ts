/** State of GPU sharing for all views, from the server's event stream. */

import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { clock, type IVisibility } from '../base/browser';
import { Disposable } from '../base/disposable';
import {
  NOT_RUNNING,
  type EventMessage,
  type IUnavailable,
  type IClient,
  type IConfig,
  type IDevice,
  type IStatus
} from '../base/protocol';
import type { IServerAccess } from '../server/api';
import { EventStream } from '../server/eventStream';
import { KernelClients } from '../server/kernelClients';
import { WaitEstimates } from '../server/waitEstimates';
import {
  nextOf,
  type INext,
  remainingSeconds,
  otherRunners,
  type IRunner
} from './clientState';
import type { ICurrentKernel } from './currentKernel';
import { startView, type IStartView } from './waitingStart';

/** The sources of a model that shows the state of one kernel. */
export interface IKernelSources {
  sharing: SharingModel;
  current: ICurrentKernel;
  visibility: IVisibility;
}

export type KernelView =
  | { readonly kind: 'unknown' }
  | { readonly kind: 'unavailable'; readonly message: string }
  | { readonly kind: 'unshared' }
  | { readonly kind: 'elsewhere'; readonly node: string }
  | IStartView
  | IClientView;

/** A shared kernel, with times that include the age of the snapshot. */
export interface IClientView {
  readonly kind: 'client';
  readonly client: IClient;
  /** Devices of the client, or all devices for a client without a device. */
  readonly devices: ReadonlyArray<IDevice>;
  readonly simulated: boolean;
  /** Seconds until the client's turn begins; null if unknown. */
  readonly expectedWait: number | null;
  readonly isLate: boolean;
  /** Other clients that have turns on the devices. */
  readonly others: ReadonlyArray<IRunner>;
  /** Seconds for which a hold keeps the devices; null without a hold. */
  readonly holdLeft: number | null;
  /** Next change of the client's state; null if unknown. */
  readonly next: INext | null;
}

/** State of GPU sharing for all views, from the server's event stream. */
export class SharingModel extends Disposable {
  constructor(options: IServerAccess) {
    super();
    this._stream = new EventStream(options);
    this._kernels = new KernelClients(options);
    this._stream.message.connect(this._onMessage, this);
    this._kernels.changed.connect(this._onKernels, this);
  }

  /**
   * Emitted when {@link status}, {@link unavailable} or the client of a kernel
   * changes.
   */
  readonly changed = new Signal<this, void>(this);

  /**
   * Last snapshot, without missed estimates of waits; null before the first
   * snapshot.
   */
  get status(): IStatus | null {
    return this._status;
  }

  /** Seconds since {@link status} arrived, by which its times have passed. */
  get age(): number {
    return clock() - this._received;
  }

  /** Reason why there is no coordinator; null while a coordinator runs. */
  get unavailable(): IUnavailable | null {
    return this._unavailable;
  }

  /** Seconds between two requests without a socket. */
  set pollInterval(seconds: number) {
    this._stream.pollInterval = seconds;
  }

  /** Return the present state of a Jupyter kernel. */
  view(kernelId: string): KernelView {
    const status = this._status;
    const start = status?.starts.find(({ kernel }) => kernel === kernelId);
    if (start && !this._unavailable) {
      return startView(start, this.age); // the start of a restart
    }
    const id = this._kernels.clientOf(kernelId);
    const node = this._kernels.nodeOf(kernelId);
    const client = status?.clients.find(client => client.id === id);
    const host = status?.nodes.find(({ name }) => name === node);
    const hasAnswered = host?.message === '';
    if (node && (this._unavailable || (!client && !hasAnswered))) {
      return { kind: 'elsewhere', node };
    }
    if (this._unavailable) {
      return unavailableView(this._unavailable, id);
    }
    if (status === null || id === undefined) {
      return { kind: 'unknown' };
    }
    if (!client) {
      return host && !hasAnswered
        ? unavailableView({ reason: '', message: host.message }, id)
        : { kind: 'unshared' };
    }
    const near = status.devices.filter(({ node }) => node === client.node);
    const bound = near.filter(({ uuid }) => client.devices.includes(uuid));
    const devices = bound.length > 0 ? bound : near;
    const age = this.age;
    return {
      kind: 'client',
      client,
      devices,
      simulated:
        bound.length > 0
          ? bound.some(device => device.simulated)
          : canOnlySimulate(status.config, near),
      others: otherRunners(client, devices, status.clients, age),
      expectedWait: remainingSeconds(client.expected_wait, age),
      isLate: this._waitEstimates.isLate(client.id),
      holdLeft: remainingSeconds(client.hold_seconds_left, age),
      next: nextOf(client, bound, age)
    };
  }

  /** Return the state of a notebook whose kernel has not started so far. */
  viewOfStart(path: string): KernelView {
    const start = this._status?.starts.find(start => start.path === path);
    return start && !this._unavailable
      ? startView(start, this.age)
      : { kind: 'unknown' };
  }

  /**
   * Request the client of a kernel again. A restarted kernel may be another
   * client.
   */
  recheck(kernelId: string): void {
    this._kernels.recheck(kernelId);
    this.changed.emit();
  }

  /** Keep the model up to date until the result is disposed. */
  watch(): IDisposable {
    this._watchers++;
    this._stream.start();
    return new DisposableDelegate(() => {
      if (--this._watchers === 0) {
        this._stream.stop();
      }
    });
  }

  /**
   * Keep the model up to date from the first kernel on, also one that starts,
   * without an end.
   */
  watchFrom(current: ICurrentKernel): void {
    const check = () => {
      if (current.kernelId !== null || current.startingPath !== null) {
        current.changed.disconnect(check, this);
        this.watch();
      }
    };
    current.changed.connect(check, this);
    check();
  }

  dispose(): void {
    this._stream.dispose();
    this._kernels.dispose();
    super.dispose();
  }

  private _onMessage(_: EventStream, message: EventMessage): void {
    if (message.type === 'unavailable') {
      this._unavailable = message;
    } else {
      this._unavailable = null;
      this._received = clock();
      this._status = this._waitEstimates.withoutMissed(
        message.status,
        this._received
      );
      const ids = new Set(message.status.clients.map(client => client.id));
      if (!areEqual(ids, this._clientIds)) {
        this._clientIds = ids;
        this._kernels.recheckMissing(ids);
      }
    }
    this.changed.emit();
  }

  private _onKernels(): void {
    this.changed.emit();
  }

  private readonly _stream: EventStream;
  private readonly _kernels: KernelClients;
  private readonly _waitEstimates = new WaitEstimates();
  private _status: IStatus | null = null;
  private _unavailable: IUnavailable | null = null;
  private _received = 0;
  private _clientIds: ReadonlySet<string> = new Set();
  private _watchers = 0;
}

/**
 * Return the view of a kernel without a coordinator.
 *
 * Kernels that do not share a GPU show nothing about the coordinator.
 */
function unavailableView(
  { reason, message }: IUnavailable,
  id: string | null | undefined
): KernelView {
  if (id === null) {
    return { kind: 'unshared' };
  }
  return id === undefined && reason === NOT_RUNNING
    ? { kind: 'unknown' }
    : { kind: 'unavailable', message };
}

/** Return whether a client without a device can only get a simulated device. */
function canOnlySimulate(
  config: IConfig | null,
  devices: ReadonlyArray<IDevice>
): boolean {
  return (
    config?.simulate ||
    (devices.length > 0 && devices.every(device => device.simulated))
  );
}

function areEqual(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  return a.size === b.size && [...a].every(id => b.has(id));
}
