/** Segments of a device's memory bar: bytes and places, without rendering. */

import type { IClient, IDevice } from '../base/protocol';
import { trans } from '../base/trans';
import { formatSize } from '../base/units';
import type { IClientLabel } from '../sharing/clientLabels';
import { evictedBytesOf } from '../sharing/clientState';

export interface ISegment {
  readonly key: string;
  /** Weight of the segment in the length of the bar. */
  readonly bytes: number;
  /** Null for contexts and code, and for memory that belongs to no client. */
  readonly label: IClientLabel | null;
  readonly text: string;
}

/** Memory on a device, and memory that was evicted from the device. */
export interface IMemoryView {
  /** Segments on the device, without free memory. */
  readonly resident: ReadonlyArray<ISegment>;
  readonly free: number;
  /** Segments beyond the end of the device. */
  readonly evicted: ReadonlyArray<ISegment>;
  readonly text: string;
}

/**
 * Smallest fraction of the device for which memory without a client gets a
 * segment.
 */
const MIN_OTHER_FRACTION = 0.01;

/**
 * Return the memory of one device.
 *
 * @param clients - all clients, of which those on the device count
 */
export function memoryView(
  device: IDevice,
  clients: ReadonlyArray<IClient>,
  labelOf: (id: string) => IClientLabel | undefined
): IMemoryView {
  const resident: ISegment[] = [];
  const evicted: ISegment[] = [];
  let residentSum = 0;
  let evictedSum = 0;
  for (const client of clients) {
    if (!client.devices.includes(device.uuid)) {
      continue;
    }
    const label = labelOf(client.id) ?? null;
    const name = label?.name ?? client.id;
    const residentBytes = residentOn(client, device.uuid);
    // In equal parts, because the device of evicted memory is unknown.
    const evictedBytes = evictedBytesOf(client) / client.devices.length;
    residentSum += residentBytes;
    evictedSum += evictedBytes;
    if (residentBytes > 0) {
      const text = trans.__('%1: %2', name, formatSize(residentBytes));
      resident.push({ key: client.id, bytes: residentBytes, label, text });
    }
    if (evictedBytes > 0) {
      const text = trans.__('%1: %2 moved out', name, formatSize(evictedBytes));
      evicted.push({ key: client.id, bytes: evictedBytes, label, text });
    }
  }
  const rest = Math.max(0, device.memory_used - residentSum);
  const contexts = Math.min(device.context_memory, rest);
  if (contexts > 0) {
    const text = trans.__('Contexts and code: %1', formatSize(contexts));
    resident.push({ key: 'contexts', bytes: contexts, label: null, text });
  }
  const other = rest - contexts;
  if (other > MIN_OTHER_FRACTION * device.memory_total) {
    const text = trans.__('Other use: %1', formatSize(other));
    resident.push({ key: '', bytes: other, label: null, text });
  }
  const used = Math.max(device.memory_used, residentSum);
  return {
    resident,
    evicted,
    free: Math.max(0, device.memory_total - used),
    text: summary(device, used, evictedSum)
  };
}

function summary(device: IDevice, used: number, evicted: number): string {
  const total = formatSize(device.memory_total);
  const amount = formatSize(used);
  const text = device.memory_used_is_estimate
    ? trans.__('about %1 of %2 used', amount, total)
    : trans.__('%1 of %2 used', amount, total);
  return evicted > 0
    ? trans.__('%1, %2 moved out', text, formatSize(evicted))
    : text;
}

/** Return the bytes of a client on one device. */
function residentOn(client: IClient, uuid: string): number {
  return (
    client.resident_by_device[uuid] ?? client.resident / client.devices.length
  );
}

/** Smallest length of a segment in its interval, about 3 pixels. */
const MIN_SEGMENT_FRACTION = 0.0125;

/** A segment with its place, in fractions of its interval. */
export interface IVisibleSegment {
  readonly segment: ISegment;
  readonly from: number;
  readonly to: number;
}

/** An interval of the bar: the device, or what lies beyond its end. */
export interface IMemoryInterval {
  /** Bytes, as weight in the length of the bar. */
  readonly length: number;
  readonly segments: ReadonlyArray<IVisibleSegment>;
}

/**
 * Return the intervals of the bar: the device's memory and the evicted memory.
 */
export function memoryIntervals({
  resident,
  free,
  evicted
}: IMemoryView): [card: IMemoryInterval, beyond: IMemoryInterval] {
  return [interval(resident, free), interval(evicted, 0)];
}

/**
 * Return the segment at a place from 0 to 1; undefined without a segment there.
 */
export function segmentAt(
  { segments }: IMemoryInterval,
  place: number
): IVisibleSegment | undefined {
  return segments.find(({ from, to }) => from <= place && place < to);
}

function interval(all: ReadonlyArray<ISegment>, free: number): IMemoryInterval {
  const length = all.reduce((sum, { bytes }) => sum + bytes, free);
  const widths = all.map(({ bytes }) =>
    Math.max(bytes, MIN_SEGMENT_FRACTION * length)
  );
  const whole = Math.max(
    length,
    widths.reduce((sum, width) => sum + width, 0)
  );
  let end = 0;
  const segments = all.map((segment, i) => {
    const from = end / whole;
    end += widths[i];
    return { segment, from, to: end / whole };
  });
  return { length, segments };
}
