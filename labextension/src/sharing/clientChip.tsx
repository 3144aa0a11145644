import * as React from 'react';

import type { INamed } from './clientLabels';

/** Colours, and patterns over them: so many clients look different. */
const COLOURS = 7;
const PATTERNS = 3;

/** The colour of a client, as a CSS value. */
export function colourOf(named: INamed | null): string {
  return !named || named.number === 0
    ? 'var(--jp-layout-color3)'
    : `var(--gpushare-colour${(named.number - 1) % COLOURS})`;
}

/** The image over the colour of a client, as a CSS value; empty for none. */
export function patternOf(named: INamed | null): string {
  const index = named ? Math.floor((named.number - 1) / COLOURS) % PATTERNS : 0;
  return index > 0 ? `var(--gpushare-pattern${index})` : '';
}

/** The client's number on its colour, to find it in the memory bars. */
export function Chip({ named }: { named: INamed }): React.ReactElement {
  return (
    <span
      className="gpushare-Chip"
      style={{ backgroundColor: colourOf(named) }}
      aria-hidden="true"
    >
      {named.number || '?'}
    </span>
  );
}

/** The client's number and name, own ones set off. */
export function Name({ named }: { named: INamed }): React.ReactElement {
  return (
    <span
      className={
        named.isOwn ? 'gpushare-Name gpushare-mod-own' : 'gpushare-Name'
      }
      title={named.name}
    >
      <Chip named={named} />
      <span className="gpushare-Name-text">{named.name}</span>
    </span>
  );
}
