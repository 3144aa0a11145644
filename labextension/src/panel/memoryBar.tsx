/** Bar of a device's memory, with segments for clients and other use. */

import * as React from 'react';

import { trans } from '../base/trans';
import { colourOf, patternOf } from '../sharing/clientChip';
import {
  type IMemoryView,
  segmentAt,
  memoryIntervals,
  type IVisibleSegment,
  type IMemoryInterval
} from './memorySegments';

/**
 * Smallest fraction of the bar on which a segment shows its client's number.
 */
const MIN_NUMBERED_FRACTION = 0.08;

/** Bar of the memory on a device, with evicted memory beyond its end. */
export function MemoryBar(props: { memory: IMemoryView }): React.ReactElement {
  const { memory } = props;
  const [card, beyond] = memoryIntervals(memory);
  const whole = card.length + beyond.length;
  const texts = [...memory.resident, ...memory.evicted].map(s => s.text);
  return (
    <div className="gpushare-Memory">
      <div
        className="gpushare-Memory-bar"
        role="img"
        aria-label={trans.__('Memory: %1', [memory.text, ...texts].join('. '))}
      >
        <Interval
          className="gpushare-Memory-card"
          interval={card}
          background={background(card, true)}
          legible={MIN_NUMBERED_FRACTION * (whole / card.length)}
        />
        {beyond.length > 0 && (
          <Interval
            className="gpushare-Memory-beyond"
            interval={beyond}
            background={background(beyond, false)}
            legible={MIN_NUMBERED_FRACTION * (whole / beyond.length)}
          />
        )}
      </div>
      <div className="gpushare-Memory-text">{memory.text}</div>
    </div>
  );
}

/**
 * An interval of the bar, as one element whose background shows the segments.
 *
 * One element for each segment costs the browser ten times as much time.
 */
function Interval(props: {
  className: string;
  interval: IMemoryInterval;
  background: string;
  /** Smallest fraction of the interval that has room for a number. */
  legible: number;
}): React.ReactElement {
  const { className, interval, background, legible } = props;
  const onPointerMove = ({
    clientX,
    currentTarget
  }: React.PointerEvent<HTMLElement>) => {
    const { left, width } = currentTarget.getBoundingClientRect();
    const found = segmentAt(interval, (clientX - left) / width);
    currentTarget.title = found?.segment.text ?? '';
  };
  return (
    <div
      className={className}
      style={{ flexGrow: interval.length, background }}
      onPointerMove={onPointerMove}
    >
      {interval.segments.map(
        ({ segment: { key, label }, from, to }) =>
          label &&
          to - from >= legible && (
            <span
              key={key}
              className="gpushare-Memory-number"
              style={{
                left: percent((from + to) / 2),
                backgroundColor: colourOf(label)
              }}
            >
              {label.number}
            </span>
          )
      )}
    </div>
  );
}

/**
 * Return a background with the colour, end line and pattern of each segment.
 */
function background(
  { segments }: IMemoryInterval,
  hasPatterns: boolean
): string {
  const patterns = hasPatterns
    ? segments.flatMap(pattern)
    : ['var(--gpushare-beyond)'];
  const colours = segments.map(({ segment, from, to }) => {
    const end = `calc(${percent(to)} - 1px)`;
    const colour = colourOf(segment.label);
    return `${colour} ${percent(from)} ${end}, var(--jp-ui-font-color1) ${end} ${percent(to)}`;
  });
  const end = percent(segments[segments.length - 1]?.to ?? 0);
  const free = `var(--jp-layout-color2) ${end} 100%`;
  const layer = `linear-gradient(90deg, ${[...colours, free].join(', ')})`;
  return [...patterns, layer].join(', ');
}

/**
 * Return the background layer of a segment's pattern, if the segment has one.
 */
function pattern({ segment, from, to }: IVisibleSegment): string[] {
  const image = patternOf(segment.label);
  const width = to - from;
  // A percentage of `background-position` refers to the space that the image
  // leaves free.
  const place = width < 1 ? from / (1 - width) : 0;
  return image
    ? [`${image} ${percent(place)} 0 / ${percent(width)} 100% no-repeat`]
    : [];
}

function percent(fraction: number): string {
  return `${Number((fraction * 100).toFixed(2))}%`;
}
