import type { IClient, IDevice } from '../base/protocol';
import { trans } from '../base/trans';
import { formatSize } from '../base/units';
import type { INamed } from '../sharing/clientLabels';

export interface ISegment {
  readonly key: string;
  /** Its part of the bar's length, against those of the others. */
  readonly bytes: number;
  /** Null for what belongs to no client. */
  readonly named: INamed | null;
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
const SMALLEST_OTHER = 0.01;

/**
 * Sum up the memory of one device.
 *
 * @param clients - all of them; those with memory on the device are taken
 */
export function memoryOf(
  device: IDevice,
  clients: ReadonlyArray<IClient>,
  nameOf: (id: string) => INamed | undefined
): IMemoryView {
  const resident: ISegment[] = [];
  const evicted: ISegment[] = [];
  let residentSum = 0;
  let evictedSum = 0;
  for (const client of clients) {
    if (!client.devices.includes(device.uuid)) {
      continue;
    }
    const named = nameOf(client.id) ?? null;
    const name = named?.name ?? client.id;
    const here = residentOn(client, device.uuid);
    const away = evictedFrom(client);
    residentSum += here;
    evictedSum += away;
    if (here > 0) {
      const text = trans.__('%1: %2', name, formatSize(here));
      resident.push({ key: client.id, bytes: here, named, text });
    }
    if (away > 0) {
      const text = trans.__('%1: %2 moved out', name, formatSize(away));
      evicted.push({ key: client.id, bytes: away, named, text });
    }
  }
  const other = device.memory_used - residentSum;
  if (other > SMALLEST_OTHER * device.memory_total) {
    const text = trans.__('Other use: %1', formatSize(other));
    resident.push({ key: '', bytes: other, named: null, text });
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
  const away = client.allocated - client.resident;
  return Math.max(0, away) / client.devices.length;
}

/** Of its stretch, that a segment has at least: about 3 pixels. */
const SMALLEST = 0.0125;

/** Where a segment is, as parts of the length of its stretch. */
export interface IPart {
  readonly segment: ISegment;
  readonly from: number;
  readonly to: number;
}

/** A stretch of the bar: the card, or what lies beyond its end. */
export interface IStretch {
  /** Bytes; its part of the bar's length, against that of the other. */
  readonly length: number;
  readonly parts: ReadonlyArray<IPart>;
}

/** The card's memory, and what had to leave it, side by side. */
export function stretchesOf({
  resident,
  free,
  evicted
}: IMemoryView): [card: IStretch, beyond: IStretch] {
  return [stretch(resident, free), stretch(evicted, 0)];
}

/** The part at a place from 0 to 1; undefined where nothing is. */
export function partAt({ parts }: IStretch, place: number): IPart | undefined {
  return parts.find(({ from, to }) => from <= place && place < to);
}

function stretch(segments: ReadonlyArray<ISegment>, free: number): IStretch {
  const length = segments.reduce((sum, { bytes }) => sum + bytes, free);
  const widths = segments.map(({ bytes }) =>
    Math.max(bytes, SMALLEST * length)
  );
  const whole = Math.max(
    length,
    widths.reduce((sum, width) => sum + width, 0)
  );
  let end = 0;
  const parts = segments.map((segment, i) => {
    const from = end / whole;
    end += widths[i];
    return { segment, from, to: end / whole };
  });
  return { length, parts };
}
