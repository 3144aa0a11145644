import * as React from 'react';

import type { IClientLabel } from './clientLabels';

/** Colours, and patterns over them: so many clients look different. */
const COLOURS = 7;
const PATTERNS = 3;

/** The colour of a client, as a CSS value. */
export function colourOf(label: IClientLabel | null): string {
  return !label || label.number === 0
    ? 'var(--jp-layout-color3)'
    : `var(--gpushare-colour${(label.number - 1) % COLOURS})`;
}

/** The image over the colour of a client, as a CSS value; empty for none. */
export function patternOf(label: IClientLabel | null): string {
  const index = label ? Math.floor((label.number - 1) / COLOURS) % PATTERNS : 0;
  return index > 0 ? `var(--gpushare-pattern${index})` : '';
}

/** The client's number on its colour, to find it in the memory bars. */
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

/** The client's number and name, own ones set off. */
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
