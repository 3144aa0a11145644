import * as React from 'react';

import { trans } from '../base/trans';
import { colourOf, patternOf } from '../sharing/clientChip';
import {
  type IMemoryView,
  partAt,
  stretchesOf,
  type IPart,
  type IStretch
} from './memorySegments';

/** A number is written on segments of at least this part of the bar. */
const LEGIBLE = 0.08;

/** What is on the card, as parts of its length, and beyond its end what had to leave. */
export function MemoryBar(props: { memory: IMemoryView }): React.ReactElement {
  const { memory } = props;
  const [card, beyond] = stretchesOf(memory);
  const whole = card.length + beyond.length;
  const texts = [...memory.resident, ...memory.evicted].map(s => s.text);
  return (
    <div className="gpushare-Memory">
      <div
        className="gpushare-Memory-bar"
        role="img"
        aria-label={trans.__('Memory: %1', [memory.text, ...texts].join('. '))}
      >
        <Stretch
          className="gpushare-Memory-card"
          stretch={card}
          background={background(card, true)}
          legible={LEGIBLE * (whole / card.length)}
        />
        {beyond.length > 0 && (
          <Stretch
            className="gpushare-Memory-beyond"
            stretch={beyond}
            background={background(beyond, false)}
            legible={LEGIBLE * (whole / beyond.length)}
          />
        )}
      </div>
      <div className="gpushare-Memory-text">{memory.text}</div>
    </div>
  );
}

/**
 * One element whatever number of segments it has: they are its background. An
 * element for each, as wide as its bytes, costs the browser ten times as much.
 */
function Stretch(props: {
  className: string;
  stretch: IStretch;
  background: string;
  /** The part of the stretch from which on there is room for a number. */
  legible: number;
}): React.ReactElement {
  const { className, stretch, background, legible } = props;
  const onPointerMove = ({
    clientX,
    currentTarget
  }: React.PointerEvent<HTMLElement>) => {
    const { left, width } = currentTarget.getBoundingClientRect();
    const part = partAt(stretch, (clientX - left) / width);
    currentTarget.title = part?.segment.text ?? '';
  };
  return (
    <div
      className={className}
      style={{ flexGrow: stretch.length, background }}
      onPointerMove={onPointerMove}
    >
      {stretch.parts.map(
        ({ segment: { key, named }, from, to }) =>
          named &&
          to - from >= legible && (
            <span
              key={key}
              className="gpushare-Memory-number"
              style={{
                left: percent((from + to) / 2),
                backgroundColor: colourOf(named)
              }}
            >
              {named.number}
            </span>
          )
      )}
    </div>
  );
}

/** Each segment in its colour, a line after it, and patterns over some. */
function background({ parts }: IStretch, hasPatterns: boolean): string {
  const patterns = hasPatterns
    ? parts.flatMap(pattern)
    : ['var(--gpushare-beyond)'];
  const colours = parts.map(({ segment, from, to }) => {
    const end = `calc(${percent(to)} - 1px)`;
    const colour = colourOf(segment.named);
    return `${colour} ${percent(from)} ${end}, var(--jp-ui-font-color1) ${end} ${percent(to)}`;
  });
  const end = percent(parts[parts.length - 1]?.to ?? 0);
  const free = `var(--jp-layout-color2) ${end} 100%`;
  const layer = `linear-gradient(90deg, ${[...colours, free].join(', ')})`;
  return [...patterns, layer].join(', ');
}

/** The layer that shows the pattern of a segment, if it has one. */
function pattern({ segment, from, to }: IPart): string[] {
  const image = patternOf(segment.named);
  const width = to - from;
  // Percentages of a background's place count what the image leaves free.
  const place = width < 1 ? from / (1 - width) : 0;
  return image
    ? [`${image} ${percent(place)} 0 / ${percent(width)} 100% no-repeat`]
    : [];
}

function percent(part: number): string {
  return `${Number((part * 100).toFixed(2))}%`;
}
