import type { IClient, IDevice } from '../base/protocol';
import { trans } from '../base/trans';
import { formatSize } from '../base/units';
import type { IClientLabel } from '../sharing/clientLabels';

export interface ISegment {
  readonly key: string;
  /** Its part of the bar's length, against those of the others. */
  readonly bytes: number;
  /** Null for what belongs to no client. */
  readonly label: IClientLabel | null;
  readonly text: string;
}

/** What a device's memory holds, and what had to leave it. */
export interface IMemoryView {
  /** On the card, without what is free. */
  readonly resident: ReadonlyArray<ISegment>;
  readonly free: number;
  /** Beyond the end of the card. */
  readonly evicted: ReadonlyArray<ISegment>;
  readonly text: string;
}

/** The part of the card below which memory of no client is not worth a segment. */
const MIN_OTHER_FRACTION = 0.01;

/**
 * Sum up the memory of one device.
 *
 * @param clients - all of them; those with memory on the device are taken
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
    const evictedBytes = evictedFrom(client);
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
  const other = device.memory_used - residentSum;
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

/** Bytes of a client on one device. */
function residentOn(client: IClient, uuid: string): number {
  return (
    client.resident_by_device[uuid] ?? client.resident / client.devices.length
  );
}

/** Bytes that left; from which of its devices is not known, so each gets a part. */
function evictedFrom(client: IClient): number {
  const evictedBytes = client.allocated - client.resident;
  return Math.max(0, evictedBytes) / client.devices.length;
}

/** Of its stretch, that a segment has at least: about 3 pixels. */
const MIN_SEGMENT_FRACTION = 0.0125;

/** Where a segment is, as parts of the length of its stretch. */
export interface IVisibleSegment {
  readonly segment: ISegment;
  readonly from: number;
  readonly to: number;
}

/** A stretch of the bar: the card, or what lies beyond its end. */
export interface IMemoryInterval {
  /** Bytes; its part of the bar's length, against that of the other. */
  readonly length: number;
  readonly segments: ReadonlyArray<IVisibleSegment>;
}

/** The card's memory, and what had to leave it, side by side. */
export function memoryIntervals({
  resident,
  free,
  evicted
}: IMemoryView): [card: IMemoryInterval, beyond: IMemoryInterval] {
  return [interval(resident, free), interval(evicted, 0)];
}

/** The part at a place from 0 to 1; undefined where nothing is. */
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
