import {
  NO_EXTENSION,
  NOT_RUNNING,
  type IUnavailable,
  type IStatus
} from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration } from '../base/units';
import type { IClientRowView } from './clientRowView';
import type { IDeviceView } from './deviceView';

/**
 * What there is to show: `connecting` before the first answer, `missing` on a
 * server without the extension, `stopped` while no coordinator is needed,
 * `away` while one is missed (the last that was known is shown), else `ready`.
 */
export type PanelKind =
  'connecting' | 'missing' | 'stopped' | 'unavailable' | 'ready';

/** Settings of the coordinator, in words. */
export interface ISettingsView {
  readonly quantum: string;
  readonly policy: string;
  readonly isAdmin: boolean;
}

/** All that the panel shows, but for the timeline. */
export interface IPanelView {
  readonly kind: PanelKind;
  readonly reason: string;
  readonly devices: ReadonlyArray<IDeviceView>;
  readonly own: ReadonlyArray<IClientRowView>;
  readonly others: ReadonlyArray<IClientRowView>;
  /** Null while nothing is known. */
  readonly settings: ISettingsView | null;
}

/** Before anything is known. */
export const EMPTY_VIEW: IPanelView = {
  kind: 'connecting',
  reason: '',
  devices: [],
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

export function settingsView({ config, you }: IStatus): ISettingsView {
  const { time_quantum: quantum, policy } = config;
  return {
    quantum:
      quantum === 'auto' ? trans.__('automatic') : formatDuration(quantum),
    policy,
    isAdmin: you.admin
  };
}
