/** Number, colour, pattern and name of a client. */

import * as React from 'react';

import type { IClientLabel } from './clientLabels';

/** Numbers of colours and of patterns. Each pair marks another client. */
const COLOURS = 7;
const PATTERNS = 3;

/** Return the colour of a client, as a CSS value. */
export function colourOf(label: IClientLabel | null): string {
  return !label || label.number === 0
    ? 'var(--jp-layout-color3)'
    : `var(--gpushare-colour${(label.number - 1) % COLOURS})`;
}

/** Return the pattern of a client, as a CSS image; empty without a pattern. */
export function patternOf(label: IClientLabel | null): string {
  const index = label ? Math.floor((label.number - 1) / COLOURS) % PATTERNS : 0;
  return index > 0 ? `var(--gpushare-pattern${index})` : '';
}

/** A client's number on the client's colour, as in the memory bars. */
export function ClientChip({
  label
}: {
  label: IClientLabel;
}): React.ReactElement {
  return (
    <span
      className="gpushare-Chip"
      style={{ backgroundColor: colourOf(label) }}
      aria-hidden="true"
    >
      {label.number || '?'}
    </span>
  );
}

/** A client's number and name. The names of own clients are bold. */
export function ClientName({
  label
}: {
  label: IClientLabel;
}): React.ReactElement {
  return (
    <span
      className={
        label.isOwn ? 'gpushare-Name gpushare-mod-own' : 'gpushare-Name'
      }
      title={label.name}
    >
      <ClientChip label={label} />
      <span className="gpushare-Name-text">{label.name}</span>
    </span>
  );
}
