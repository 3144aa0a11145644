/** Announcements for screen readers: a rendered text, and a live region. */

import * as React from 'react';

/** A text that a screen reader reads politely when the text changes. */
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

/**
 * Node from which a screen reader politely reads texts that no visible part of
 * the page has.
 */
export class LiveRegion {
  constructor() {
    this._node.className = 'gpushare-mod-visuallyHidden';
    this._node.setAttribute('role', 'status');
    this._node.setAttribute('aria-live', 'polite');
    document.body.append(this._node);
  }

  /**
   * Set the text. A screen reader ignores a text that is equal to the last one.
   */
  announce(text: string): void {
    if (this._node.textContent !== text) {
      this._node.textContent = text;
    }
  }

  private readonly _node = document.createElement('div');
}
