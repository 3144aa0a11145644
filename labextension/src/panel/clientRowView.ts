/** Data of a client's row in the panel, without rendering. */

import { ACTIONS } from '../base/commands';
import type { IClient, IDevice, IQuota } from '../base/protocol';
import { trans } from '../base/trans';
import { formatSize } from '../base/units';
import { isProgram, type IClientLabel } from '../sharing/clientLabels';
import {
  evictedBytesOf,
  formatQuota,
  limitText,
  stateLine
} from '../sharing/clientState';
import { disabledReason } from '../actions/targets';

/** Content of a client's row in the panel. */
export interface IClientRowView {
  readonly label: IClientLabel;
  readonly phase: string;
  /** State with its times. */
  readonly state: string;
  /** Node of the client; empty for the host of the server. */
  readonly node: string;
  readonly memory: string;
  /** Empty for the default quota. */
  readonly quota: string;
  /**
   * Sentence about what limits the client now, and since when; empty without
   * a limit.
   */
  readonly limit: string;
  /** Sentence about the progress; empty without one. */
  readonly progress: string;
  /** Part of the work that is done, from 0 to 1; null if unknown. */
  readonly fractionDone: number | null;
  readonly notes: ReadonlyArray<string>;
  /** True if the client may have a document that can be opened. */
  readonly canOpen: boolean;
  readonly actions: ReadonlyArray<string>;
}

/**
 * Return the content of a client's row.
 *
 * @param devices - devices of the client's node
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
    node: client.node,
    memory: memoryText(client),
    quota: quotaText(client.quota),
    limit: limitText(client),
    progress: client.progress_text,
    fractionDone: client.progress?.total
      ? client.progress.done / client.progress.total
      : null,
    notes: client.notes,
    canOpen,
    actions: ACTIONS.filter(id => disabledReason(id, { client }) === '')
  };
}

/**
 * Return the bounds that differ from the defaults; empty without such bounds.
 */
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
  const contexts = formatSize(client.context_memory);
  if (client.allocated === 0 && client.resident === 0) {
    return client.context_memory > 0
      ? trans.__('%1 for contexts and code', contexts)
      : trans.__('no GPU memory');
  }
  const text = allocatedText(client);
  return client.context_memory > 0
    ? trans.__('%1, %2 more for contexts and code', text, contexts)
    : text;
}

function allocatedText(client: IClient): string {
  const allocated = formatSize(client.allocated);
  const evictedBytes = evictedBytesOf(client);
  if (evictedBytes === 0) {
    return allocated;
  }
  return client.resident_is_estimate
    ? trans.__('%1, about %2 moved out', allocated, formatSize(evictedBytes))
    : trans.__('%1, %2 moved out', allocated, formatSize(evictedBytes));
}
