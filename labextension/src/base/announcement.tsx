import * as React from 'react';

/** What a screen reader says politely when it changes. */
export function Announcement({ text }: { text: string }): React.ReactElement {
  return (
    <span
      className="gpushare-mod-visuallyHidden"
      role="status"
      aria-live="polite"
    >
      {text}
    </span>
  );
}

/** Where a screen reader hears politely what only changes elsewhere. */
export class LiveRegion {
  constructor() {
    this._node.className = 'gpushare-mod-visuallyHidden';
    this._node.setAttribute('role', 'status');
    this._node.setAttribute('aria-live', 'polite');
    document.body.append(this._node);
  }

  /** Say it once; the same text again says nothing. */
  announce(text: string): void {
    if (this._node.textContent !== text) {
      this._node.textContent = text;
    }
  }

  private readonly _node = document.createElement('div');
}
