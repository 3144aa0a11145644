import type { IDisposable } from '@lumino/disposable';

/** Where a screen reader hears politely what only changes elsewhere. */
export class LiveRegion implements IDisposable {
  constructor() {
    this.node.className = 'gpushare-mod-visuallyHidden';
    this.node.setAttribute('role', 'status');
    this.node.setAttribute('aria-live', 'polite');
    document.body.append(this.node);
  }

  readonly node = document.createElement('div');

  get isDisposed(): boolean {
    return !this.node.isConnected;
  }

  /** Say it once; the same text again says nothing. */
  say(text: string): void {
    if (this.node.textContent !== text) {
      this.node.textContent = text;
    }
  }

  dispose(): void {
    this.node.remove();
  }
}
