import type { IMemoryView, ISegment } from './memory';

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
