/**
 * What the server extension serves, as TypeScript types.
 *
 * Only the fields that the front end reads are declared. Times are in seconds, sizes in bytes.
 */

/** The right of a client to run on a device. */
export interface IGrant {
  readonly client: string;
  readonly held_seconds: number;
  /** Null while no client waits: the turn has no deadline then. */
  readonly seconds_left: number | null;
  /** By a hold, while its client runs nothing. */
  readonly held: boolean;
}

/** One GPU (or MIG slice). */
export interface IDevice {
  readonly uuid: string;
  readonly name: string;
  readonly simulated: boolean;
  readonly memory_total: number;
  readonly memory_used: number;
  readonly memory_used_is_estimate: boolean;
  /** Fraction of the last seconds in which it worked; null if not known. */
  readonly utilisation: number | null;
  readonly utilisation_is_estimate: boolean;
  /** Why it is out of use; null: it is not. */
  readonly failed: string | null;
  /** Processes that use it without sharing it. */
  readonly outside: ReadonlyArray<IForeignProcess>;
  /** Processes that have its lock while clients here wait for that. */
  readonly locked_by: ReadonlyArray<Omit<IForeignProcess, 'memory'>>;
  readonly grants: ReadonlyArray<IGrant>;
  /** Client ids, the next one first. */
  readonly queue: ReadonlyArray<string>;
}

/** A process that uses a device and belongs to no client. */
export interface IForeignProcess {
  /** Null: not known, or hidden from the user that asks. */
  readonly user: string | null;
  /** Null: not known. */
  readonly memory: number | null;
}

/** What a client may use; null is "no bound of its own". */
export interface IQuota {
  readonly share: number | null;
  readonly limit: number | null;
  readonly memory: number | null;
  readonly resident: number | null;
  readonly service: string | null;
}

/** What a form asks for, as the server describes it: a JSON schema. */
export interface IFormSchema {
  readonly type: 'object';
  readonly properties: {
    readonly [name: string]: {
      readonly title: string;
      readonly description: string;
      /** Of a number: people write it as text. */
      readonly unit?: string;
      /** What is allowed, in a sentence. */
      readonly errorMessage?: string;
      readonly [keyword: string]: unknown;
    };
  };
}

/** Values in force, and the schema of a form that changes them. */
export type WithSchema<T> = T & { readonly schema: IFormSchema };

/** One notebook kernel, or a program under `jupyter gpushare run`. */
export interface IClient {
  readonly id: string;
  /** Empty for a client of another user: only its tenant is shown. */
  readonly label: string;
  readonly tenant: string;
  /** Whether it belongs to the user that asks. */
  readonly own: boolean;
  /** Whether the user that asks may change it. */
  readonly may_change: boolean;
  /** idle, waiting, running, draining, overrun or suspended. */
  readonly phase: string;
  /** A word for programs, more exact than the phase: see `openapi.yaml`. */
  readonly state: string;
  /** The same for people, without times; up to " · " it is short. */
  readonly state_text: string;
  /** UUIDs; empty before the first CUDA call. */
  readonly devices: ReadonlyArray<string>;
  readonly quota: IQuota;
  /** What bounds its launches now, for people; empty: nothing does. */
  readonly limit_text: string;
  /** Whether it gets no turns until it is resumed. */
  readonly suspended: boolean;
  /** Whether that is for being idle: its next cell or GPU call resumes it. */
  readonly suspended_by_policy: boolean;
  /** For how long it has not been used; null: it is in use. */
  readonly idle_seconds: number | null;
  /** Whether its user is warned of it. */
  readonly idle_warned: boolean;
  /** In how many seconds its memory leaves the device; null: it does not. */
  readonly evicted_in: number | null;
  /** In how many seconds it is suspended; null: it is not. */
  readonly suspended_in: number | null;
  /** Whether its memory has left the device for that, until its next turn. */
  readonly evicted_by_policy: boolean;
  /** It keeps its devices between cells for so long; null: it does not. */
  readonly hold_seconds_left: number | null;
  readonly allocated: number;
  readonly resident: number;
  /** Unified memory cannot be asked where it is. */
  readonly resident_is_estimate: boolean;
  readonly resident_by_device: Readonly<Record<string, number>>;
  /** Host memory that evicted memory takes. */
  readonly host_pinned: number;
  readonly host_pageable: number;
  readonly gpu_seconds: number;
  readonly wait_seconds: number;
  /** Counted from 1. */
  readonly queue_position: number | null;
  readonly expected_wait: number | null;
  /** The notebook's cells that run, as far as front ends report them; of own clients. */
  readonly cell_ids: ReadonlyArray<string>;
  /** Requests that run now. */
  readonly cells: number;
  /** What its user should know. */
  readonly notes: ReadonlyArray<string>;
}

/** The user that asks, as the coordinator knows it. */
export interface IViewer {
  /** As in {@link IClient.tenant}. */
  readonly tenant: string;
  /** Whether settings and others' quotas may be changed. */
  readonly admin: boolean;
}

/** Settings of the coordinator, among others. */
export interface IConfig {
  readonly policy: string;
  /** Seconds, or chosen from what switching costs. */
  readonly time_quantum: number | 'auto';
  readonly max_hold: number;
  readonly simulate: boolean;
  readonly [name: string]: unknown;
}

/** A snapshot of the coordinator's state. */
export interface IStatus {
  readonly devices: ReadonlyArray<IDevice>;
  readonly clients: ReadonlyArray<IClient>;
  readonly config: IConfig;
  readonly you: IViewer;
}

/** What a client may change of a quota; text such as "8GiB" or "50%" will do. */
export type QuotaChanges = {
  readonly [key in keyof IQuota]?: string | number | null;
};

/** What happened to a client. */
export type HistoryEvent =
  | 'waiting'
  | 'running'
  /** A turn that is kept by a hold, while nothing runs. */
  | 'held'
  | 'draining'
  | 'idle'
  | 'suspended'
  | 'gone'
  | 'cell_started'
  | 'cell_ended';

/** One line of the coordinator's history. */
export interface IHistoryEntry {
  /** Seconds on the coordinator's clock, as {@link IHistory.now}. */
  readonly at: number;
  readonly client: string;
  readonly what: HistoryEvent;
}

/** What happened in the last minutes, the oldest first. */
export interface IHistory {
  /** Changes with every coordinator; entries of another run are void. */
  readonly run: string;
  readonly now: number;
  /** Ask with this as `after` for what follows. */
  readonly next: number;
  /** Whether more has happened than one answer can hold: ask again at once. */
  readonly more: boolean;
  readonly entries: ReadonlyArray<IHistoryEntry>;
  /** By UUID; null if not known. */
  readonly utilisation: Readonly<Record<string, number | null>>;
}

/** What arrives on the event socket. */
export type EventMessage =
  | { readonly type: 'snapshot'; readonly status: IStatus }
  | ({ readonly type: 'away' } & IUnavailable);

/** Why there is no snapshot. */
export interface IUnavailable {
  /** A word for programs; {@link NOT_RUNNING} is no failure. */
  readonly reason: string;
  /** A sentence for people. */
  readonly message: string;
}

/** No coordinator runs, and nothing on this server needs one. */
export const NOT_RUNNING = 'not_running';

/** The Jupyter server knows nothing of GPU sharing. */
export const NO_EXTENSION = 'no_extension';

/** Read a frame of the event socket; null for text that is no message. */
export function parseMessage(text: string): EventMessage | null {
  try {
    const message = JSON.parse(text);
    return ['snapshot', 'away'].includes(message.type) ? message : null;
  } catch {
    return null;
  }
}
