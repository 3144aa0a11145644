import type { TranslationBundle } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import type { IClient, IDevice, IGrant, IQuota } from '../protocol';
import { holds, isSuspended } from './actions';
import {
  formatBytes,
  formatDuration,
  formatPassed,
  formatQuota
} from './format';
import { idlenessOf } from './idleness';
import type { INamed } from './named';
import { isProgram } from './names';
import { countDown, isHeld } from './turns';

/** A command that makes sense for a client now. */
export interface IAction {
  readonly command: string;
  readonly args: { readonly client: string };
}

/** What the list of clients says about one of them. */
export interface IRow {
  readonly named: INamed;
  readonly phase: string;
  /** The state in words, with its times. */
  readonly state: string;
  readonly memory: string;
  /** Empty: no more and no less than others. */
  readonly quota: string;
  readonly notes: ReadonlyArray<string>;
  /** Whether there may be a document to go to. */
  readonly canOpen: boolean;
  readonly actions: ReadonlyArray<IAction>;
}

/**
 * @param age - seconds since the snapshot
 */
export function rowOf(
  client: IClient,
  named: INamed,
  devices: ReadonlyArray<IDevice>,
  age: number,
  trans: TranslationBundle
): IRow {
  const canOpen = named.isOwn && !isProgram(client);
  return {
    named,
    phase: client.phase,
    state: stateOf(client, devices, age, trans),
    memory: memoryText(client, trans),
    quota: quotaText(client.quota, trans),
    notes: client.notes ?? [],
    canOpen,
    actions: actionsFor(client)
  };
}

/** What can be done with a client in its present state, if the user may. */
export function actionsFor(client: IClient): ReadonlyArray<IAction> {
  if (!client.may_change) {
    return [];
  }
  const hasTurn = client.phase === 'running' || client.phase === 'overrun';
  const commands = isSuspended(client)
    ? [CommandIDs.changeQuota, CommandIDs.resume]
    : [
        CommandIDs.changeQuota,
        CommandIDs.hold,
        ...(hasTurn || holds(client) ? [CommandIDs.release] : []),
        CommandIDs.suspend,
        ...(client.resident > 0 ? [CommandIDs.evict] : [])
      ];
  return commands.map(command => ({ command, args: { client: client.id } }));
}

/** What differs from what everybody has; empty: nothing. */
function quotaText(quota: IQuota, trans: TranslationBundle): string {
  const bounds: IQuota = {
    ...quota,
    share: quota.share || null,
    limit: quota.limit === 1 ? null : quota.limit,
    service: quota.service === 'online' ? null : quota.service
  };
  return Object.values(bounds).some(bound => bound !== null)
    ? formatQuota(bounds, trans)
    : '';
}

function stateOf(
  client: IClient,
  devices: ReadonlyArray<IDevice>,
  age: number,
  trans: TranslationBundle
): string {
  const text = phaseText(client, devices, age, trans);
  const left = countDown(client.hold_seconds_left ?? null, age);
  if (!left) {
    return text;
  }
  return isHeld(client, devices)
    ? trans.__('%1 · %2 left', text, formatDuration(left, trans))
    : trans.__('%1 · held for %2', text, formatDuration(left, trans));
}

function phaseText(
  client: IClient,
  devices: ReadonlyArray<IDevice>,
  age: number,
  trans: TranslationBundle
): string {
  switch (client.phase) {
    case 'running': {
      if (isHeld(client, devices)) {
        return trans.__('Holds the GPU');
      }
      const grants = devices
        .flatMap(device => device.grants)
        .filter(grant => grant.client === client.id);
      return grants.length > 0
        ? turnTime(grants[0], age, trans)
        : trans.__('Running');
    }
    case 'waiting':
      return client.queue_position === null
        ? trans.__('Waiting')
        : waitText(client.queue_position, client.expected_wait, age, trans);
    case 'draining':
      return trans.__('Turn ending');
    case 'overrun':
      return trans.__('Turn overrun');
    case 'suspended':
      return client.suspended_by_policy
        ? trans.__('Suspended for being idle · its next cell resumes it')
        : trans.__('Suspended');
    case 'idle':
      return client.devices.length === 0
        ? trans.__('Has not used the GPU yet')
        : idleState(client, age, trans);
    default:
      return client.phase;
  }
}

/** For how long nobody has used it, and what comes, or has come, of that. */
function idleState(
  client: IClient,
  age: number,
  trans: TranslationBundle
): string {
  const text = idleText(client.idle_seconds ?? 0, age, trans);
  const idleness = idlenessOf(client, age);
  switch (idleness?.kind) {
    case 'evicts': {
      const left = formatDuration(idleness.left, trans);
      return trans.__('%1 · memory moves off in %2', text, left);
    }
    case 'suspends': {
      const left = formatDuration(idleness.left, trans);
      return trans.__('%1 · suspended in %2', text, left);
    }
    case 'evicted':
      return trans.__('%1 · memory moved off', text);
    default:
      return text;
  }
}

/** For how long nobody has used it, if that is a minute or more. */
function idleText(
  seconds: number,
  age: number,
  trans: TranslationBundle
): string {
  const passed = seconds > 0 ? seconds + age : 0;
  return passed < 60
    ? trans.__('Idle')
    : trans.__('Idle for %1', formatPassed(passed, trans));
}

/** For how long a turn has lasted and, if it has an end, will last. */
function turnTime(
  grant: IGrant,
  age: number,
  trans: TranslationBundle
): string {
  const held = formatDuration(Math.floor(grant.held_seconds + age), trans);
  const left = countDown(grant.seconds_left, age);
  return left === null
    ? trans.__('Running for %1', held)
    : trans.__(
        'Running for %1 · up to %2 left',
        held,
        formatDuration(left, trans)
      );
}

/** A place in the queue; a wait longer than expected promises nothing. */
function waitText(
  position: number,
  expected: number | null,
  age: number,
  trans: TranslationBundle
): string {
  const wait = countDown(expected, age);
  return wait
    ? trans.__('#%1 in queue · about %2', position, formatDuration(wait, trans))
    : trans.__('#%1 in queue', position);
}

function memoryText(client: IClient, trans: TranslationBundle): string {
  if (client.allocated === 0 && client.resident === 0) {
    return trans.__('no GPU memory');
  }
  const allocated = formatBytes(client.allocated);
  const away = client.allocated - client.resident;
  if (away <= 0) {
    return allocated;
  }
  return client.resident_is_estimate
    ? trans.__('%1, about %2 moved out', allocated, formatBytes(away))
    : trans.__('%1, %2 moved out', allocated, formatBytes(away));
}
