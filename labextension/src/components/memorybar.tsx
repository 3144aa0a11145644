import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IMemoryView, ISegment } from '../model/memory';
import { colourOf } from './chip';

/** A number is written on segments of at least this part of the bar. */
const LEGIBLE = 0.08;

/**
 * What is on the card, as parts of its length, and beyond its end what had to
 * leave. Lengths are flex factors: nothing is measured.
 */
export const MemoryBar = React.memo(function MemoryBar(props: {
  memory: IMemoryView;
  trans: TranslationBundle;
}): React.ReactElement {
  const { memory, trans } = props;
  const card = sum(memory.resident) + memory.free;
  const beyond = sum(memory.evicted);
  const parts = [...memory.resident, ...memory.evicted].map(s => s.text);
  return (
    <div className="gpushare-Memory">
      <div
        className="gpushare-Memory-bar"
        role="img"
        aria-label={trans.__('Memory: %1', [memory.text, ...parts].join('. '))}
      >
        <div className="gpushare-Memory-card" style={{ flexGrow: card }}>
          {memory.resident.map(segment => (
            <Segment
              key={segment.key}
              segment={segment}
              isLegible={segment.bytes / (card + beyond) > LEGIBLE}
            />
          ))}
          <div style={{ flexGrow: memory.free }} />
        </div>
        {beyond > 0 && (
          <div className="gpushare-Memory-beyond" style={{ flexGrow: beyond }}>
            {memory.evicted.map(segment => (
              <Segment
                key={segment.key}
                segment={segment}
                isLegible={segment.bytes / (card + beyond) > LEGIBLE}
              />
            ))}
          </div>
        )}
      </div>
      <div className="gpushare-Memory-text">{memory.text}</div>
    </div>
  );
});

const Segment = React.memo(function Segment(props: {
  segment: ISegment;
  isLegible: boolean;
}): React.ReactElement {
  const { segment, isLegible } = props;
  return (
    <div
      className={`gpushare-Memory-segment ${colourOf(segment.named)}`}
      style={{ flexGrow: segment.bytes }}
      title={segment.text}
    >
      {isLegible && segment.named !== null && (
        <span className="gpushare-Memory-number">{segment.named.number}</span>
      )}
    </div>
  );
});

function sum(segments: ReadonlyArray<ISegment>): number {
  return segments.reduce((bytes, segment) => bytes + segment.bytes, 0);
}
