import * as React from 'react';

import type { INamed } from '../model/named';

/** Colours, and patterns over them: so many clients look different. */
const COLOURS = 7;
const PATTERNS = 3;

/** The class names that give an element a client's colour and pattern. */
export function colourOf(named: INamed | null): string {
  if (!named || named.number === 0) {
    return 'gpushare-mod-nobody';
  }
  const index = named.number - 1;
  const pattern = Math.floor(index / COLOURS) % PATTERNS;
  return `gpushare-mod-colour${index % COLOURS} gpushare-mod-pattern${pattern}`;
}

/** The client's number on its colour, to find it in the memory bars. */
export const Chip = React.memo(function Chip(props: {
  named: INamed;
}): React.ReactElement {
  const { named } = props;
  return (
    <span className={`gpushare-Chip ${colourOf(named)}`} aria-hidden="true">
      {named.number || '?'}
    </span>
  );
});

/** The client's number and name, own ones set off. */
export const Name = React.memo(function Name(props: {
  named: INamed;
}): React.ReactElement {
  const { named } = props;
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
});
