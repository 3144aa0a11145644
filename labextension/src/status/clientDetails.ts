/**
 * Lines of the status item's tooltip: label, quota, memory, use and devices.
 */

import type { IClient, IDevice, IStatus } from '../base/protocol';
import { trans } from '../base/trans';
import { formatSize, formatDuration } from '../base/units';
import { displayName } from '../sharing/clientLabels';
import { formatQuota, limitText } from '../sharing/clientState';
import type { IClientView, KernelView } from '../sharing/sharingModel';

/** A line of the tooltip. */
export type IDetail = { label: string; value: string };

export function formatDetails(
  view: KernelView,
  status: IStatus | null
): IDetail[] {
  if (view.kind === 'client') {
    return clientDetails(view, status);
  }
  const reason =
    view.kind === 'unshared'
      ? trans.__('This kernel was started without GPU sharing.')
      : view.kind === 'starting'
        ? view.start.message
        : view.kind === 'unavailable'
          ? view.message
          : view.kind === 'elsewhere'
            ? trans.__(
                'The kernel runs on the node %1. %gpushare in a cell shows its state.',
                view.node
              )
            : '';
  return reason ? [{ label: trans.__('Reason'), value: reason }] : [];
}

function clientDetails(view: IClientView, status: IStatus | null): IDetail[] {
  const { client, devices } = view;
  const details: IDetail[] = [
    { label: trans.__('Label'), value: client.label || client.id },
    ...(client.node ? [{ label: trans.__('Node'), value: client.node }] : []),
    { label: trans.__('Quota'), value: formatQuota(client.quota) },
    { label: trans.__('Memory'), value: memoryText(client) },
    {
      label: trans.__('So far'),
      value: trans.__(
        '%1 on the GPU, %2 waiting',
        formatDuration(client.gpu_seconds),
        formatDuration(client.wait_seconds)
      )
    }
  ];
  if (view.holdLeft !== null) {
    details.push({
      label: trans.__('Held'),
      value: trans.__('for %1', formatDuration(view.holdLeft))
    });
  }
  if (client.progress_text) {
    details.push({ label: trans.__('Progress'), value: client.progress_text });
  }
  if (client.limit_text) {
    details.push({ label: trans.__('Limited'), value: limitText(client) });
  }
  for (const note of client.notes) {
    details.push({ label: trans.__('Note'), value: note });
  }
  for (const device of devices) {
    details.push({
      label: device.simulated
        ? trans.__('%1 (simulated)', device.name || device.uuid)
        : device.name || device.uuid,
      value: runnerText(device, client, status)
    });
  }
  return details;
}

function memoryText(client: IClient): string {
  const allocated = formatSize(client.allocated);
  const resident = formatSize(client.resident);
  const device = client.resident_is_estimate
    ? trans.__('%1 allocated, about %2 on the device', allocated, resident)
    : trans.__('%1 allocated, %2 on the device', allocated, resident);
  const host = client.host_pinned + client.host_pageable;
  const text =
    host > 0
      ? trans.__('%1, %2 on the host', device, formatSize(host))
      : device;
  const contexts = client.context_memory;
  return contexts > 0
    ? trans.__('%1, %2 more for contexts and code', text, formatSize(contexts))
    : text;
}

function runnerText(
  device: IDevice,
  own: IClient,
  status: IStatus | null
): string {
  const names = device.grants
    .map(grant => {
      const other = status?.clients.find(({ id }) => id === grant.client);
      return grant.client === own.id
        ? trans.__('this kernel')
        : other
          ? displayName(other)
          : trans.__('another client');
    })
    .join(', ');
  if (names === '') {
    return trans.__('no client running');
  }
  return device.grants.every(({ held }) => held)
    ? trans.__('held by %1', names)
    : trans.__('%1 running', names);
}
