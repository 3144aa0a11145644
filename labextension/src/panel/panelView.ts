/**
 * Type of the panel's content, with its kind and the texts of the settings,
 * without rendering.
 */

import {
  NO_EXTENSION,
  NOT_RUNNING,
  type IUnavailable,
  type IStatus
} from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration } from '../base/units';
import type { IStartView } from '../sharing/waitingStart';
import type { IClientRowView } from './clientRowView';
import type { IDeviceView } from './deviceView';

/**
 * Content of the panel.
 *
 * `connecting` holds before the first answer, `missing` for a server without
 * the extension, and `stopped` while no coordinator is needed. `unavailable` is
 * an outage, during which the last view is shown.
 */
export type PanelKind =
  'connecting' | 'missing' | 'stopped' | 'unavailable' | 'ready';

/** Settings of the coordinator, as texts. */
export interface ISettingsView {
  readonly quantum: string;
  readonly policy: string;
  readonly isAdmin: boolean;
}

/** Devices of the server's host, or of a node. */
export interface IHostView {
  /** Empty for the host of the server. */
  readonly node: string;
  /** Reason why the devices are unknown; empty otherwise. */
  readonly message: string;
  readonly devices: ReadonlyArray<IDeviceView>;
}

/** Content of the panel without the timeline. */
export interface IPanelView {
  readonly kind: PanelKind;
  readonly reason: string;
  /** Hosts that have devices or a message. */
  readonly hosts: ReadonlyArray<IHostView>;
  /** Starts that wait for a node with room. */
  readonly starts: ReadonlyArray<IStartView>;
  readonly own: ReadonlyArray<IClientRowView>;
  readonly others: ReadonlyArray<IClientRowView>;
  /** Null without a snapshot to show. */
  readonly settings: ISettingsView | null;
}

/** View without a snapshot to show. */
export const EMPTY_VIEW: IPanelView = {
  kind: 'connecting',
  reason: '',
  hosts: [],
  starts: [],
  own: [],
  others: [],
  settings: null
};

export function panelKind(
  status: IStatus | null,
  unavailable: IUnavailable | null
): PanelKind {
  if (unavailable) {
    switch (unavailable.reason) {
      case NOT_RUNNING:
        return 'stopped';
      case NO_EXTENSION:
        return 'missing';
      default:
        return 'unavailable';
    }
  }
  return status ? 'ready' : 'connecting';
}

/** Return the settings of the host; null without a coordinator on the host. */
export function settingsView({
  config,
  viewer
}: IStatus): ISettingsView | null {
  if (config === null) {
    return null;
  }
  const { time_quantum: quantum, policy } = config;
  return {
    quantum:
      quantum === 'auto' ? trans.__('automatic') : formatDuration(quantum),
    policy,
    isAdmin: viewer.admin
  };
}
