/**
 * Types of the data between the server extension and the front end, and the
 * parser of event messages.
 *
 * Only the fields that the front end uses are declared. Times are in seconds,
 * sizes in bytes.
 */

/** Kernel that shares a GPU, as its Jupyter server reports it. */
export interface ISharedKernel {
  readonly kernel: string;
  readonly client: string;
  /** Node of the kernel; empty for the host of the server. */
  readonly node: string;
}

/** A turn of a client on a device. */
export interface IGrant {
  readonly client: string;
  readonly granted_seconds: number;
  /** Null while no client waits, because the turn has no deadline then. */
  readonly seconds_left: number | null;
  /** True if a hold keeps the turn while the client runs nothing. */
  readonly held: boolean;
}

/** One GPU, or one MIG slice. */
export interface IDevice {
  /** Unique on its node. */
  readonly uuid: string;
  /** Node of the device; empty for the host of the server. */
  readonly node: string;
  readonly name: string;
  /** UUID of the GPU that a MIG slice is a part of; null for a whole GPU. */
  readonly parent: string | null;
  readonly simulated: boolean;
  /** Own settings of the device, where they differ from those of the host. */
  readonly settings: Readonly<Record<string, unknown>>;
  readonly memory_total: number;
  readonly memory_used: number;
  readonly memory_used_is_estimate: boolean;
  /** Bytes of contexts and code of clients; 0 if there are none, or unknown. */
  readonly context_memory: number;
  /**
   * Fraction of the last seconds in which the device was busy; null if unknown.
   */
  readonly utilisation: number | null;
  readonly utilisation_is_estimate: boolean;
  /** Reason why the device is out of use; null if the device is in use. */
  readonly failed: string | null;
  /** Processes that use the device and belong to no client. */
  readonly foreign_processes: ReadonlyArray<IForeignProcess>;
  /**
   * Processes that hold the device's lock while clients of this coordinator
   * wait.
   */
  readonly locked_by: ReadonlyArray<Omit<IForeignProcess, 'memory'>>;
  readonly grants: ReadonlyArray<IGrant>;
  /** Client ids, the next client first. */
  readonly queue: ReadonlyArray<string>;
}

/** A process that uses a device and belongs to no client. */
export interface IForeignProcess {
  /** Null if unknown, or hidden from the present user. */
  readonly user: string | null;
  /** Null if unknown. */
  readonly memory: number | null;
}

/** Bounds of a client; null if the quota has no bound of that kind. */
export interface IQuota {
  readonly share: number | null;
  readonly limit: number | null;
  readonly memory: number | null;
  readonly resident: number | null;
  readonly service: string | null;
}

/** JSON schema of a form, as the server describes the form. */
export interface IFormSchema {
  readonly type: 'object';
  readonly properties: {
    readonly [name: string]: {
      readonly title: string;
      readonly description: string;
      /** Unit of a number that users write as text. */
      readonly unit?: string;
      /** A sentence about the allowed values. */
      readonly errorMessage?: string;
      readonly [keyword: string]: unknown;
    };
  };
}

/** Values in force, with the schema of the form that changes them. */
export type WithSchema<T> = T & { readonly schema: IFormSchema };

/** Progress of a cell or program; `openapi.yaml` has more of its fields. */
export interface IProgress {
  readonly done: number;
  /** Null if unknown. */
  readonly total: number | null;
}

/** One notebook kernel, or one program under `jupyter gpushare run`. */
export interface IClient {
  readonly id: string;
  /** Node of the client; empty for the host of the server. */
  readonly node: string;
  /** Empty for a client of another user, of which only the user is visible. */
  readonly label: string;
  readonly user: string;
  /** True if the client belongs to the present user. */
  readonly own: boolean;
  /** True if the present user may change the client. */
  readonly may_change: boolean;
  /** One of idle, waiting, running, draining, overrun and suspended. */
  readonly phase: string;
  /**
   * State for programs, more exact than the phase. `openapi.yaml` has the list.
   */
  readonly state: string;
  /**
   * State for users, without times. The part before the first " · " is short.
   */
  readonly state_text: string;
  /** UUIDs; empty before the first CUDA call. */
  readonly devices: ReadonlyArray<string>;
  readonly quota: IQuota;
  /**
   * Sentence about what limits the client's launches now; empty without a
   * limit.
   */
  readonly limit_text: string;
  /**
   * Present limits; `since` is in Unix seconds. A coordinator of an earlier
   * version sends no `text`.
   */
  readonly limits: ReadonlyArray<{
    readonly since: number;
    readonly text?: string;
  }>;
  /** Progress of the cell or program; null if unknown, or of another user. */
  readonly progress: IProgress | null;
  /** Sentence about the progress; empty without one. */
  readonly progress_text: string;
  /** True if the client gets no turns until a resume. */
  readonly suspended: boolean;
  /**
   * True if the idle policy has suspended the client. The next cell or GPU call
   * resumes such a client.
   */
  readonly suspended_by_policy: boolean;
  /**
   * Seconds since the client was last used; null while the client is in use.
   */
  readonly idle_seconds: number | null;
  /** True if the idle policy warns the client's user. */
  readonly idle_warned: boolean;
  /**
   * Seconds until the idle policy evicts the client; null if no eviction is
   * due.
   */
  readonly evicted_in: number | null;
  /**
   * Seconds until the idle policy suspends the client; null if no suspension is
   * due.
   */
  readonly suspended_in: number | null;
  /**
   * True if the idle policy has evicted the client, until the client's next
   * turn.
   */
  readonly evicted_by_policy: boolean;
  /** Seconds for which a hold keeps the devices; null without a hold. */
  readonly hold_seconds_left: number | null;
  readonly allocated: number;
  /** Part of `allocated` for which neither device nor host has memory yet. */
  readonly unmade: number;
  readonly resident: number;
  /**
   * True if `resident` is estimated, because the driver reports no place of
   * unified memory.
   */
  readonly resident_is_estimate: boolean;
  readonly resident_by_device: Readonly<Record<string, number>>;
  /**
   * Bytes of contexts and code, beside `allocated`; 0 if there are none, or
   * unknown.
   */
  readonly context_memory: number;
  /** Bytes of host memory that evicted memory takes. */
  readonly host_pinned: number;
  readonly host_pageable: number;
  readonly gpu_seconds: number;
  readonly wait_seconds: number;
  /** Number of turns that have begun. */
  readonly turn_count: number;
  /** Position in the queue, counted from 1. */
  readonly queue_position: number | null;
  readonly expected_wait: number | null;
  /**
   * Message about what keeps the client from being next; empty otherwise, and
   * for clients of other users.
   */
  readonly wait_reason: string;
  /**
   * Ids of the notebook's running cells that front ends report. Empty for
   * clients of other users.
   */
  readonly cell_ids: ReadonlyArray<string>;
  /** Number of requests that the kernel is executing. */
  readonly cells: number;
  /** Sentences for the client's user. */
  readonly notes: ReadonlyArray<string>;
}

/** The present user, as the coordinator identifies the user. */
export interface IViewer {
  /** Same value as in {@link IClient.user}. */
  readonly user: string;
  /** True if the user may change settings and the quotas of other users. */
  readonly admin: boolean;
}

/** Settings of the coordinator. */
export interface IConfig {
  readonly policy: string;
  /** Seconds, or `auto` for a length that follows the switch cost. */
  readonly time_quantum: number | 'auto';
  readonly max_hold: number;
  readonly simulate: boolean;
  readonly [name: string]: unknown;
}

/** Node that has kernels of the server, or the host, if it does not answer. */
export interface INode {
  /** Empty for the host. */
  readonly name: string;
  /** Reason why its devices and clients are unknown; empty otherwise. */
  readonly message: string;
}

/** Start of a kernel of the server that waits for a node with room. */
export interface IStart {
  readonly kernel: string;
  readonly label: string;
  /** Path of the notebook; empty without one. */
  readonly path: string;
  /** Place in the queue, from 1 on. */
  readonly position: number;
  /** Null if unknown. */
  readonly expected_wait: number | null;
  /** Reason why no node has room; empty before the first try. */
  readonly message: string;
}

/** Snapshot of the state of the coordinators, of the host and of the nodes. */
export interface IStatus {
  readonly devices: ReadonlyArray<IDevice>;
  readonly clients: ReadonlyArray<IClient>;
  readonly nodes: ReadonlyArray<INode>;
  /** The first start first. */
  readonly starts: ReadonlyArray<IStart>;
  /** Settings of the host; null without a coordinator on the host. */
  readonly config: IConfig | null;
  /** Absent without a coordinator on the host. */
  readonly coordinator?: {
    /** Messages for users about parts that do not work. */
    readonly problems?: ReadonlyArray<string>;
  };
  readonly viewer: IViewer;
}

/** Changes of a quota. A text such as "8GiB" or "50%" is a value too. */
export type QuotaChanges = {
  readonly [key in keyof IQuota]?: string | number | null;
};

/** An entry's kind: a new phase, or the start or end of a cell. */
export type HistoryEvent =
  | 'waiting'
  | 'running'
  /** A turn that a hold keeps while the client runs nothing. */
  | 'held'
  | 'draining'
  | 'idle'
  | 'suspended'
  | 'gone'
  | 'cell_started'
  | 'cell_ended';

/** One entry of the coordinator's history. */
export interface IHistoryEntry {
  /** Seconds on the coordinator's clock, as {@link IHistory.now}. */
  readonly at: number;
  readonly client: string;
  readonly what: HistoryEvent;
}

/** Entries of the last minutes, the oldest first. */
export interface IHistory {
  /** Id of the coordinator's run. Entries of another run are invalid. */
  readonly run: string;
  readonly now: number;
  /** Value of `after` in the next request. */
  readonly next: number;
  /**
   * True if entries are left, so that the next request should follow at once.
   */
  readonly more: boolean;
  readonly entries: ReadonlyArray<IHistoryEntry>;
  /** Fractions by UUID; null if unknown. */
  readonly utilisation: Readonly<Record<string, number | null>>;
}

/** Message of the event socket. */
export type EventMessage =
  | { readonly type: 'snapshot'; readonly status: IStatus }
  | ({ readonly type: 'unavailable' } & IUnavailable);

/** Reason why there is no snapshot. */
export interface IUnavailable {
  /** Reason for programs. {@link NOT_RUNNING} is no failure. */
  readonly reason: string;
  /** Reason for users, as a sentence. */
  readonly message: string;
}

/** No coordinator runs, and no kernel of this server needs one. */
export const NOT_RUNNING = 'not_running';

/** The Jupyter server has no GPU sharing extension. */
export const NO_EXTENSION = 'no_extension';

/**
 * Parse a frame of the event socket. Return null for text that is no message.
 */
export function parseMessage(text: string): EventMessage | null {
  try {
    const message = JSON.parse(text);
    return ['snapshot', 'unavailable'].includes(message.type) ? message : null;
  } catch {
    return null;
  }
}
