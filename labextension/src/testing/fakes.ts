/** Fakes of the server, the page and the shell, and examples of snapshots. */
import type { ReadonlyJSONValue } from '@lumino/coreutils';
import { Signal } from '@lumino/signaling';

import type { IVisibility } from '../base/browser';
import type {
  IClient,
  IConfig,
  IDevice,
  IFormSchema,
  IGrant,
  IHistory,
  IQuota,
  ISharedKernel,
  IStart,
  IStatus,
  QuotaChanges,
  WithSchema
} from '../base/protocol';
import { ApiError, type Action, type IApi } from '../server/api';
import type { ICurrentKernel } from '../sharing/currentKernel';
import type { IRunningCells } from '../waiting/waitModel';

export const GIB = 1024 ** 3;

export function device(changes: Partial<IDevice> = {}): IDevice {
  return {
    uuid: 'GPU-1',
    node: '',
    name: 'Test GPU',
    parent: null,
    simulated: false,
    settings: {},
    memory_total: 16 * GIB,
    memory_used: 4 * GIB,
    memory_used_is_estimate: false,
    context_memory: 0,
    utilisation: null,
    utilisation_is_estimate: false,
    failed: null,
    foreign_processes: [],
    locked_by: [],
    grants: [],
    queue: [],
    ...changes
  };
}

export function grant(changes: Partial<IGrant> = {}): IGrant {
  return {
    client: 'mine',
    granted_seconds: 3,
    seconds_left: null,
    held: false,
    ...changes
  };
}

export function client(changes: Partial<IClient> = {}): IClient {
  const state = changes.state ?? changes.phase ?? 'idle';
  const position = changes.queue_position ?? null;
  return {
    state,
    state_text: position === null ? state : `#${position} in queue`,
    limit_text: '',
    limits: [],
    progress: null,
    progress_text: '',
    id: 'mine',
    node: '',
    label: 'train.ipynb',
    user: 'ada',
    own: true,
    may_change: true,
    phase: 'idle',
    devices: ['GPU-1'],
    quota: {
      share: 0.5,
      limit: 0.9,
      memory: 8 * GIB,
      resident: null,
      service: 'online'
    },
    suspended: changes.phase === 'suspended',
    suspended_by_policy: false,
    idle_seconds: null,
    idle_warned: false,
    evicted_in: null,
    suspended_in: null,
    evicted_by_policy: false,
    hold_seconds_left: null,
    allocated: 3 * GIB,
    unmade: 0,
    resident: 1.5 * GIB,
    resident_is_estimate: false,
    resident_by_device: {},
    context_memory: 0,
    host_pinned: 0,
    host_pageable: 0,
    gpu_seconds: 12,
    wait_seconds: 30,
    turn_count: 0,
    queue_position: null,
    expected_wait: null,
    wait_reason: '',
    cell_ids: [],
    cells: 0,
    notes: [],
    ...changes
  };
}

const fraction = { type: 'number', minimum: 0, maximum: 1, unit: 'fraction' };
const size = {
  type: ['integer', 'string', 'null'],
  minimum: 1048576,
  pattern: '^([0-9]+(\\.[0-9]*)?\\s*%|[01]?\\.[0-9]+)$',
  unit: 'size',
  errorMessage: 'Allowed: a size from 1 MiB, for example 8GiB.'
};

function schema(
  properties: Record<string, Record<string, ReadonlyJSONValue>>
): IFormSchema {
  const described = Object.entries(properties).map(([name, about]) => {
    const errorMessage = `Allowed for ${name}: …`;
    return [name, { title: name, description: 'why', errorMessage, ...about }];
  });
  return { type: 'object', properties: Object.fromEntries(described) };
}

function choice(...values: string[]): Record<string, ReadonlyJSONValue> {
  const oneOf = values.map(value => ({ const: value, title: `${value}: …` }));
  return { type: 'string', default: values[0], oneOf };
}

const QUOTA_SCHEMA = schema({
  share: fraction,
  limit: fraction,
  memory: size,
  resident: size,
  service: choice('online', 'offline')
});

const seconds = {
  type: ['number', 'string'],
  minimum: 0.001,
  maximum: 86400,
  pattern: '^auto$',
  unit: 'seconds'
};

const CONFIG_SCHEMA = schema({
  time_quantum: { ...seconds, title: 'Time quantum' },
  policy: { ...choice('interactive', 'fcfs'), title: 'Policy' },
  max_wait: { type: 'number', unit: 'seconds' }
});

export const CONFIG: IConfig = {
  policy: 'interactive',
  time_quantum: 'auto',
  max_hold: 600,
  simulate: false
};

export function status(clients: IClient[], devices = [device()]): IStatus {
  const viewer = { user: 'ada', admin: false };
  return { devices, clients, nodes: [], starts: [], config: CONFIG, viewer };
}

export function history(changes: Partial<IHistory> = {}): IHistory {
  return {
    run: 'first',
    now: 1000,
    next: 0,
    more: false,
    entries: [],
    utilisation: {},
    ...changes
  };
}

/** Return a start that waits for a node with room. */
export function start(changes: Partial<IStart> = {}): IStart {
  return {
    kernel: 'kernel',
    label: 'train.ipynb',
    path: 'train.ipynb',
    position: 2,
    expected_wait: 150,
    message: 'the node has no room for the kernel',
    ...changes
  };
}

/** Return a status with a running client. */
export function runningStatus(seconds_left: number | null): IStatus {
  const grants = [grant({ seconds_left })];
  return status([client({ phase: 'running' })], [device({ grants })]);
}

/** Fake of the browser's socket, with the test as the server. */
export class FakeSocket {
  onclose: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  isClosed = false;

  close(): void {
    this.isClosed = true;
  }

  /** Deliver a message of the server. */
  send(message: unknown): void {
    this.onmessage?.({
      data: typeof message === 'string' ? message : JSON.stringify(message)
    });
  }

  sendSnapshot(status: IStatus): void {
    this.send({ type: 'snapshot', status });
  }

  /** Break the connection, or fail to open it. */
  break(): void {
    this.isClosed = true;
    this.onclose?.();
  }
}

function answer<T>(value: T | Error): T {
  if (value instanceof Error) {
    throw value;
  }
  return value;
}

export class FakeApi implements IApi {
  /** All opened sockets, the last socket last. */
  sockets: FakeSocket[] = [];
  /** Answer of GET status. An error is thrown. */
  answer: IStatus | Error = new ApiError('unreachable', 0);
  statusCalls = 0;
  /** Answers of GET kernels. A kernel without an answer is not shared. */
  clients: Record<string, string | Error> = { kernel: 'mine' };
  /** Nodes of kernels that are not on this host. */
  nodes: Record<string, string> = {};
  kernelCalls: string[] = [];
  /** Answer of GET history. An error is thrown. */
  past: IHistory | Error = history();
  /** Answers of GET history before `past`, in order. */
  pasts: IHistory[] = [];
  historyCalls: number[] = [];
  /** Requested changes, in order. */
  changes: [what: string, about: string, value?: unknown][] = [];
  /** Error of each change; null if changes succeed. */
  refusal: ApiError | null = null;

  get socket(): FakeSocket {
    return this.sockets[this.sockets.length - 1];
  }

  async status(): Promise<IStatus> {
    this.statusCalls++;
    return answer(this.answer);
  }

  async kernel(kernelId: string): Promise<ISharedKernel | null> {
    this.kernelCalls.push(kernelId);
    const client = answer(this.clients[kernelId] ?? null);
    const node = this.nodes[kernelId] ?? '';
    return client === null ? null : { kernel: kernelId, client, node };
  }

  async history(after: number): Promise<IHistory> {
    this.historyCalls.push(after);
    return answer(this.pasts.shift() ?? this.past);
  }

  async setQuota(clientId: string, changes: QuotaChanges): Promise<IQuota> {
    this._change('quota', clientId, changes);
    return { ...client().quota, ...changes } as IQuota;
  }

  async act(clientId: string, action: Action): Promise<void> {
    this._change(action, clientId);
  }

  async cancelStart(kernelId: string): Promise<void> {
    this._change('cancel', kernelId);
  }

  async hold(clientId: string, seconds: number): Promise<number | null> {
    this._change('hold', clientId, seconds);
    return seconds || null;
  }

  async quota(): Promise<WithSchema<IQuota>> {
    return { ...client().quota, schema: QUOTA_SCHEMA };
  }

  async config(): Promise<WithSchema<IConfig>> {
    return { ...CONFIG, schema: CONFIG_SCHEMA };
  }

  async setConfig(
    changes: Readonly<Record<string, unknown>>
  ): Promise<IConfig> {
    this._change('config', '', changes);
    return { ...CONFIG, ...changes };
  }

  private _change(what: string, about: string, value?: unknown): void {
    if (this.refusal) {
      throw this.refusal;
    }
    this.changes.push(
      value === undefined ? [what, about] : [what, about, value]
    );
  }

  openEvents(): WebSocket {
    const socket = new FakeSocket();
    this.sockets.push(socket);
    return socket as unknown as WebSocket;
  }
}

export class FakeVisibility implements IVisibility {
  hidden = false;
  readonly changed = new Signal<this, void>(this);

  set(hidden: boolean): void {
    this.hidden = hidden;
    this.changed.emit();
  }
}

export class FakeCurrentKernel implements ICurrentKernel {
  kernelId: string | null = null;
  startingPath: string | null = null;
  readonly changed = new Signal<this, void>(this);
  readonly restarting = new Signal<this, string>(this);

  set(kernelId: string | null, startingPath: string | null = null): void {
    this.kernelId = kernelId;
    this.startingPath = startingPath;
    this.changed.emit();
  }
}

/** A document in which one cell runs, or no cell. */
export class FakeRunningCells implements IRunningCells<string> {
  cell: string | null = 'cell';
  readonly changed = new Signal<this, void>(this);

  first(ids: ReadonlyArray<string>): string | null {
    return this.cell ?? ids[0] ?? null;
  }

  set(cell: string | null): void {
    this.cell = cell;
    this.changed.emit();
  }
}
