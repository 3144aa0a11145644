/** Choice of the client of a command, and reasons why a command is disabled. */

import { CommandIDs } from '../base/commands';
import type { IClient } from '../base/protocol';
import { trans } from '../base/trans';
import type { SharingModel } from '../sharing/sharingModel';

/** Client of a command, or the reason why there is none. */
export type Target = { readonly client: IClient } | { readonly reason: string };

/**
 * Return the client of a command.
 *
 * @param clientId - client in the command's arguments
 * @param kernelId - current kernel
 */
export function findTarget(
  sharing: SharingModel,
  clientId: string | undefined,
  kernelId: string | null
): Target {
  const { unavailable, status } = sharing;
  if (clientId === undefined) {
    return ofKernel(sharing, kernelId);
  }
  if (unavailable) {
    return { reason: unavailableText(unavailable.message) };
  }
  const client = status?.clients.find(({ id }) => id === clientId);
  return client
    ? { client }
    : { reason: trans.__('This client no longer shares the GPU.') };
}

/**
 * Return the reason why a command is disabled; empty for an enabled command.
 */
export function disabledReason(command: string, target: Target): string {
  if ('reason' in target) {
    return target.reason;
  }
  const { client } = target;
  if (!client.may_change) {
    return trans.__(
      'This client belongs to %1. Only %1 and admins may change this client.',
      client.user
    );
  }
  switch (command) {
    case CommandIDs.release:
      return ['running', 'overrun'].includes(client.phase) ||
        client.hold_seconds_left !== null
        ? ''
        : trans.__('This client has no turn to give up.');
    case CommandIDs.hold:
      return client.suspended
        ? trans.__('This client is suspended and gets no turns.')
        : '';
    case CommandIDs.evict:
      return client.resident > 0
        ? ''
        : trans.__('This client has no memory on the GPU.');
    case CommandIDs.suspend:
      return client.suspended
        ? trans.__('This client is suspended already.')
        : '';
    case CommandIDs.resume:
      return client.suspended ? '' : trans.__('This client is not suspended.');
    default:
      return '';
  }
}

function ofKernel(sharing: SharingModel, kernelId: string | null): Target {
  const view = kernelId === null ? null : sharing.view(kernelId);
  switch (view?.kind) {
    case 'client':
      return { client: view.client };
    case 'unavailable':
      return { reason: unavailableText(view.message) };
    case 'unshared':
      return {
        reason: trans.__('This kernel was started without GPU sharing.')
      };
    case 'starting':
      return { reason: trans.__('The kernel waits for a node with room.') };
    case 'elsewhere':
      return {
        reason: trans.__(
          'The kernel runs on the node %1: use %gpushare in a cell.',
          view.node
        )
      };
    default:
      return {
        reason: trans.__('No notebook or console that shares the GPU is open.')
      };
  }
}

function unavailableText(message: string): string {
  return message
    ? trans.__('The GPU sharing service is unavailable: %1', message)
    : trans.__('The GPU sharing service is unavailable.');
}
