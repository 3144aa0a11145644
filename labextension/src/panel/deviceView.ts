import type { IClient, IDevice, IGrant, IOutside } from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration, formatSize } from '../base/units';
import type { INamed } from '../sharing/clientLabels';
import { countDown } from '../sharing/clientState';
import { memoryOf, type IMemoryView } from './memorySegments';

/** A client that has a device, or waits for it. */
export interface IUse {
  readonly named: INamed;
  /** How long. */
  readonly time: string;
}

/** What the card of a device shows. */
export interface IDeviceView {
  readonly uuid: string;
  readonly name: string;
  readonly isSimulated: boolean;
  /** Why it is out of use; empty: it is not. */
  readonly failed: string;
  /** From 0 to 1; null if not known. */
  readonly utilisation: number | null;
  readonly utilisationText: string;
  readonly memory: IMemoryView;
  readonly running: ReadonlyArray<IUse>;
  /** The next one first. */
  readonly queue: ReadonlyArray<IUse>;
  /** The processes that use it without sharing it; empty: none. */
  readonly outside: string;
  /** The processes that keep it from the clients here; empty: none. */
  readonly lockedBy: string;
}

/**
 * @param utilisation - newer than the snapshot's; undefined: there is none
 * @param age - seconds since the snapshot
 */
export function deviceView(
  device: IDevice,
  clients: ReadonlyMap<string, IClient>,
  nameOf: (id: string) => INamed | undefined,
  utilisation: number | null | undefined,
  age: number
): IDeviceView {
  const part = utilisation ?? device.utilisation;
  const named = (id: string): INamed =>
    nameOf(id) ?? {
      id,
      number: 0,
      name: trans.__('another client'),
      isOwn: false
    };
  return {
    uuid: device.uuid,
    name: device.name || device.uuid,
    isSimulated: device.simulated,
    failed: device.failed ?? '',
    utilisation: part,
    utilisationText: utilisationText(part, device.utilisation_is_estimate),
    memory: memoryOf(device, [...clients.values()], nameOf),
    running: device.grants.map(grant => ({
      named: named(grant.client),
      time: turnTime(grant, age)
    })),
    queue: device.queue.map(id => ({
      named: named(id),
      time: waitTime(clients.get(id), age)
    })),
    outside: outsideText(device.outside),
    lockedBy: outsideText(device.locked_by)
  };
}

/** What is left of a turn; without an end, for how long it has lasted. */
function turnTime(grant: IGrant, age: number): string {
  const left = countDown(grant.seconds_left, age);
  if (grant.held) {
    return left === null
      ? trans.__('holds it')
      : trans.__('holds it, %1 left', formatDuration(left));
  }
  return left === null
    ? trans.__('for %1', formatDuration(Math.floor(grant.held_seconds + age)))
    : trans.__('up to %1 left', formatDuration(left));
}

function waitTime(client: IClient | undefined, age: number): string {
  const wait = countDown(client?.expected_wait ?? null, age);
  return wait ? trans.__('about %1', formatDuration(wait)) : '';
}

function utilisationText(part: number | null, isEstimate: boolean): string {
  if (part === null) {
    return '';
  }
  const percent = Math.round(part * 100);
  return isEstimate
    ? trans.__('about %1 % busy', percent)
    : trans.__('%1 % busy', percent);
}

/**
 * The number, memory and users of the processes that use a device without sharing
 * it; empty: there are none. The server names users to themselves and to admins.
 */
export function outsideText(
  processes: ReadonlyArray<Omit<IOutside, 'memory'> & Partial<IOutside>>
): string {
  if (processes.length === 0) {
    return '';
  }
  const parts = [trans._n('%1 process', '%1 processes', processes.length)];
  const known = processes.flatMap(({ memory }) => memory ?? []);
  if (known.length > 0) {
    const sum = formatSize(known.reduce((sum, bytes) => sum + bytes, 0));
    parts.push(
      known.length < processes.length ? trans.__('at least %1', sum) : sum
    );
  }
  const users = [...new Set(processes.flatMap(({ user }) => user ?? []))];
  if (users.length > 0) {
    const names = users.sort().join(', ');
    parts.push(
      processes.every(({ user }) => user !== null)
        ? trans.__('of %1', names)
        : trans.__('of %1 and others', names)
    );
  }
  return parts.join(' · ');
}
