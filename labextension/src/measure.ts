/**
 * What an update of the panel costs, for whoever measures it in a browser.
 *
 * While `globalThis.gpushareMeasure` is true, every update leaves a
 * `performance.measure` of this name: from the arrival of a message, or the
 * tick of the clock, until React has changed the page.
 */
export const UPDATE_MEASURE = 'gpushare:update';

let started: number | null = null;

/** An update begins; one that has begun and not ended is forgotten. */
export function beginUpdate(): void {
  if (isMeasuring()) {
    started = performance.now();
    // If nothing that is shown changes, it has no end.
    setTimeout(() => (started = null), 0);
  }
}

/** Like {@link beginUpdate}, unless a cause of this update has begun it. */
export function continueUpdate(): void {
  if (started === null) {
    beginUpdate();
  }
}

/** The page has been changed. */
export function endUpdate(): void {
  if (started !== null) {
    performance.measure(UPDATE_MEASURE, {
      start: started,
      end: performance.now()
    });
    started = null;
  }
}

function isMeasuring(): boolean {
  return (globalThis as { gpushareMeasure?: unknown }).gpushareMeasure === true;
}
