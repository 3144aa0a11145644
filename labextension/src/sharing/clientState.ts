/** Texts and figures of a client's state, turns, memory and quota. */

import type { IClient, IDevice, IQuota } from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration, formatElapsed, formatSize } from '../base/units';

/** The next change of a client's state. */
export interface INext {
  readonly kind: 'wait' | 'turn' | 'hold' | 'evicts' | 'suspends';
  /** Remaining seconds at this moment. */
  readonly left: number;
}

/** Return the bytes of a client that have left its devices for the host. */
export function evictedBytesOf(client: IClient): number {
  return Math.max(0, client.allocated - client.resident - client.unmade);
}

/** Return the part of `state_text` that fits a status bar. */
export function shortState({ state_text }: IClient): string {
  return state_text.split(' · ')[0];
}

/**
 * Return the next change of a client's state, or null if the time is unknown.
 *
 * The time is also unknown for a wait that has lasted longer than expected.
 *
 * @param age - seconds since the snapshot
 */
export function nextOf(
  client: IClient,
  devices: ReadonlyArray<IDevice>,
  age: number
): INext | null {
  const next = (kind: INext['kind'], seconds: number | null) => {
    const left = remainingSeconds(seconds, age);
    return left === null ? null : { kind, left };
  };
  const { evicted_in: evicted, suspended_in: suspended } = client;
  switch (client.state) {
    case 'waiting': {
      const wait = next('wait', client.expected_wait);
      return wait?.left ? wait : null;
    }
    case 'running':
      return next('turn', secondsToDeadline(client, devices));
    case 'held':
      return (
        next('hold', secondsToDeadline(client, devices)) ??
        next('hold', client.hold_seconds_left)
      );
    default:
      if (!client.idle_warned) {
        return null;
      }
      return (evicted ?? Infinity) < (suspended ?? Infinity)
        ? next('evicts', evicted)
        : next('suspends', suspended);
  }
}

export function nextText({ kind, left }: INext): string {
  const time = formatDuration(left);
  switch (kind) {
    case 'wait':
      return trans.__('about %1', time);
    case 'turn':
      return trans.__('up to %1 left', time);
    case 'hold':
      return trans.__('%1 left', time);
    case 'evicts':
      return trans.__('memory moves off in %1', time);
    case 'suspends':
      return trans.__('suspended in %1', time);
  }
}

/**
 * Return `state_text` with its times, as `state_line` in `kernel/display/formatting.py`.
 *
 * The text of a turn also has the time that the turn has lasted.
 *
 * @param age - seconds since the snapshot
 */
export function stateLine(
  client: IClient,
  devices: ReadonlyArray<IDevice>,
  age: number
): string {
  const parts = [client.state_text];
  const grant = devices
    .flatMap(device => device.grants)
    .find(grant => grant.client === client.id);
  if (client.state === 'running' && grant) {
    const lasted = Math.floor(grant.granted_seconds + age);
    parts.push(trans.__('for %1', formatDuration(lasted)));
  }
  const next = nextOf(client, devices, age);
  const unused = client.idle_seconds ? client.idle_seconds + age : 0;
  if (unused >= 60) {
    parts.push(trans.__('unused for %1', formatElapsed(unused)));
  }
  if (next) {
    parts.push(nextText(next));
  }
  const held = remainingSeconds(client.hold_seconds_left, age);
  if (held && client.state !== 'held') {
    parts.push(trans.__('held for %1', formatDuration(held)));
  }
  return parts.join(' · ');
}

/** A client that has a turn. */
export interface IRunner {
  /** Undefined if the snapshot has no such client. */
  readonly client: IClient | undefined;
  /** Seconds until the deadline; null without a deadline. */
  readonly secondsLeft: number | null;
  /** True if a hold keeps the device while the client runs nothing. */
  readonly isHeld: boolean;
}

/** Return the seconds that remain `age` seconds later; null for null. */
export function remainingSeconds(
  seconds: number | null,
  age: number
): number | null {
  return seconds === null ? null : Math.max(0, seconds - age);
}

/** Return the seconds to the earliest deadline of the client's grants. */
export function secondsToDeadline(
  client: IClient,
  devices: ReadonlyArray<IDevice>
): number | null {
  const deadlines = devices
    .flatMap(device => device.grants)
    .filter(grant => grant.client === client.id)
    .map(grant => grant.seconds_left)
    .filter((seconds): seconds is number => seconds !== null);
  return deadlines.length > 0 ? Math.min(...deadlines) : null;
}

/**
 * Return each other client with a turn once, whatever number of devices it has.
 */
export function otherRunners(
  { id }: IClient,
  devices: ReadonlyArray<IDevice>,
  clients: ReadonlyArray<IClient>,
  age: number
): IRunner[] {
  const grants = devices
    .flatMap(device => device.grants)
    .filter(grant => grant.client !== id);
  const latest = new Map(grants.map(grant => [grant.client, grant]));
  return [...latest.values()].map(({ client, seconds_left, held }) => ({
    client: clients.find(({ id }) => id === client),
    secondsLeft: remainingSeconds(seconds_left, age),
    isHeld: held
  }));
}

/** Format the bounds of a quota in one line. */
export function formatQuota(quota: IQuota): string {
  const percent = (fraction: number) => Math.round(fraction * 100);
  const parts: string[] = [];
  if (quota.share !== null) {
    parts.push(trans.__('share %1 %', percent(quota.share)));
  }
  if (quota.limit !== null) {
    parts.push(trans.__('limit %1 %', percent(quota.limit)));
  }
  if (quota.memory !== null) {
    parts.push(trans.__('memory %1', formatSize(quota.memory)));
  }
  if (quota.resident !== null) {
    parts.push(trans.__('resident %1', formatSize(quota.resident)));
  }
  if (quota.service !== null) {
    parts.push(quota.service);
  }
  return parts.length > 0 ? parts.join(', ') : trans.__('none');
}

/**
 * Return what limits the client now, and since when each limit has held; empty
 * without a limit.
 */
export function limitText(client: IClient): string {
  const parts = client.limits.flatMap(({ text, since }) =>
    text
      ? trans.__(
          '%1, since %2',
          text,
          new Date(since * 1000).toLocaleTimeString()
        )
      : []
  );
  return parts.join('; ') || client.limit_text;
}
