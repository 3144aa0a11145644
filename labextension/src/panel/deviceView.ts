/**
 * Data of a device's card in the panel: names, times and texts, without
 * rendering.
 */

import type {
  IClient,
  IDevice,
  IGrant,
  IForeignProcess
} from '../base/protocol';
import { trans } from '../base/trans';
import { formatDuration, formatSize } from '../base/units';
import type { IClientLabel } from '../sharing/clientLabels';
import { remainingSeconds } from '../sharing/clientState';
import { memoryView, type IMemoryView } from './memorySegments';

/** A client that runs on a device or waits for the device. */
export interface IClientOnDevice {
  readonly label: IClientLabel;
  /** Remaining or expected time. */
  readonly time: string;
}

/** Content of a device's card. */
export interface IDeviceView {
  readonly uuid: string;
  readonly name: string;
  /** UUID, and for a MIG slice also the UUID of its GPU. */
  readonly title: string;
  readonly isSimulated: boolean;
  /** Reason why the device is out of use; empty if the device is in use. */
  readonly failureReason: string;
  /** From 0 to 1; null if unknown. */
  readonly utilisation: number | null;
  readonly utilisationText: string;
  readonly memory: IMemoryView;
  readonly running: ReadonlyArray<IClientOnDevice>;
  /** Waiting clients, the next client first. */
  readonly queue: ReadonlyArray<IClientOnDevice>;
  /**
   * Text about the processes that use the device and belong to no client; empty
   * without such processes.
   */
  readonly foreignProcesses: string;
  /**
   * Text about the processes that hold the device's lock; empty without such
   * processes.
   */
  readonly lockedBy: string;
  /** Own settings of the device; empty if all its settings are the host's. */
  readonly ownSettings: string;
}

/**
 * Return the content of a device's card.
 *
 * @param utilisation - value after the snapshot; undefined without such a value
 * @param age - seconds since the snapshot
 */
export function deviceView(
  device: IDevice,
  clients: ReadonlyMap<string, IClient>,
  labelOf: (id: string) => IClientLabel | undefined,
  utilisation: number | null | undefined,
  age: number
): IDeviceView {
  const fraction = utilisation ?? device.utilisation;
  const label = (id: string): IClientLabel =>
    labelOf(id) ?? {
      id,
      number: 0,
      name: trans.__('another client'),
      isOwn: false
    };
  return {
    uuid: device.uuid,
    name: device.name || device.uuid,
    title: device.parent
      ? trans.__('%1, a MIG slice of %2', device.uuid, device.parent)
      : device.uuid,
    isSimulated: device.simulated,
    failureReason: device.failed ?? '',
    utilisation: fraction,
    utilisationText: utilisationText(fraction, device.utilisation_is_estimate),
    memory: memoryView(device, [...clients.values()], labelOf),
    running: device.grants.map(grant => ({
      label: label(grant.client),
      time: turnTime(grant, age)
    })),
    queue: device.queue.map(id => ({
      label: label(id),
      time: waitTime(clients.get(id), age)
    })),
    foreignProcesses: processesText(device.foreign_processes),
    lockedBy: processesText(device.locked_by),
    ownSettings: Object.entries(device.settings)
      .map(([name, value]) => `${name} ${value}`)
      .join(', ')
  };
}

/**
 * Return a text on the remaining time of a turn or hold, or on the elapsed time
 * of a turn without an end.
 */
function turnTime(grant: IGrant, age: number): string {
  const left = remainingSeconds(grant.seconds_left, age);
  if (grant.held) {
    return left === null
      ? trans.__('holds it')
      : trans.__('holds it, %1 left', formatDuration(left));
  }
  return left === null
    ? trans.__(
        'for %1',
        formatDuration(Math.floor(grant.granted_seconds + age))
      )
    : trans.__('up to %1 left', formatDuration(left));
}

function waitTime(client: IClient | undefined, age: number): string {
  const wait = remainingSeconds(client?.expected_wait ?? null, age);
  return wait ? trans.__('about %1', formatDuration(wait)) : '';
}

function utilisationText(fraction: number | null, isEstimate: boolean): string {
  if (fraction === null) {
    return '';
  }
  const percent = Math.round(fraction * 100);
  return isEstimate
    ? trans.__('about %1 % busy', percent)
    : trans.__('%1 % busy', percent);
}

/**
 * Return the number, memory and users of the processes as text.
 *
 * The text is empty without processes. The server sends the name of a process's
 * user only to that user and to admins.
 */
export function processesText(
  processes: ReadonlyArray<
    Omit<IForeignProcess, 'memory'> & Partial<IForeignProcess>
  >
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
