import { ACTIONS } from '../base/commands';
import type { IClient, IDevice, IQuota } from '../base/protocol';
import { trans } from '../base/trans';
import { formatSize } from '../base/units';
import { isProgram, type IClientLabel } from '../sharing/clientLabels';
import { stateLine, formatQuota } from '../sharing/clientState';
import { disabledReason } from '../actions/targets';

/** What the list of clients says about one of them. */
export interface IClientRowView {
  readonly label: IClientLabel;
  readonly phase: string;
  /** The state in words, with its times. */
  readonly state: string;
  readonly memory: string;
  /** Empty: no more and no less than others. */
  readonly quota: string;
  /** What bounds its launches now; empty: nothing does. */
  readonly limit: string;
  readonly notes: ReadonlyArray<string>;
  /** Whether there may be a document to go to. */
  readonly canOpen: boolean;
  readonly actions: ReadonlyArray<string>;
}

/**
 * @param age - seconds since the snapshot
 */
export function clientRowView(
  client: IClient,
  label: IClientLabel,
  devices: ReadonlyArray<IDevice>,
  age: number
): IClientRowView {
  const canOpen = label.isOwn && !isProgram(client);
  return {
    label,
    phase: client.phase,
    state: capital(stateLine(client, devices, age)),
    memory: memoryText(client),
    quota: quotaText(client.quota),
    limit: client.limit_text,
    notes: client.notes,
    canOpen,
    actions: ACTIONS.filter(id => disabledReason(id, { client }) === '')
  };
}

/** What differs from the defaults; empty: nothing. */
function quotaText(quota: IQuota): string {
  const bounds: IQuota = {
    ...quota,
    share: quota.share || null,
    limit: quota.limit === 1 ? null : quota.limit,
    service: quota.service === 'online' ? null : quota.service
  };
  return Object.values(bounds).some(bound => bound !== null)
    ? formatQuota(bounds)
    : '';
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function memoryText(client: IClient): string {
  if (client.allocated === 0 && client.resident === 0) {
    return trans.__('no GPU memory');
  }
  const allocated = formatSize(client.allocated);
  const evictedBytes = client.allocated - client.resident;
  if (evictedBytes <= 0) {
    return allocated;
  }
  return client.resident_is_estimate
    ? trans.__('%1, about %2 moved out', allocated, formatSize(evictedBytes))
    : trans.__('%1, %2 moved out', allocated, formatSize(evictedBytes));
}
