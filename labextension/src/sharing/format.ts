import type { IQuota } from '../base/protocol';
import { trans } from '../base/trans';
import type { KernelView } from './sharingModel';
import { nextText, shortState } from './clientState';
import { formatSize } from '../base/units';

/** Seconds until what is left of `seconds` reads differently. */
export function untilNextSecond(seconds: number): number {
  return seconds - Math.ceil(seconds) + 1;
}

/**
 * The status bar's text; for screen readers without times, which change every
 * second.
 */
export function formatHeadline(view: KernelView, hasTimes = true): string {
  const state = formatState(view);
  if (view.kind !== 'client') {
    return state;
  }
  const { next, simulated } = view;
  const text = next && hasTimes ? `${state} · ${nextText(next)}` : state;
  return simulated ? trans.__('%1 (simulated)', text) : text;
}

/** The headline without times, and without whether it is simulated. */
export function formatState(view: KernelView): string {
  switch (view.kind) {
    case 'unknown':
      return '';
    case 'away':
      return trans.__('GPU: sharing service away');
    case 'unshared':
      return trans.__('GPU: not shared');
    case 'client':
      return trans.__('GPU: %1', shortState(view.client));
  }
}

/** What a quota bounds, in one line. */
export function formatQuota(quota: IQuota): string {
  const percent = (part: number) => Math.round(part * 100);
  const parts: string[] = [];
  if (quota.share !== null) {
    parts.push(trans.__('share %1 %', percent(quota.share)));
  }
  if (quota.limit !== null) {
    parts.push(trans.__('limit %1 %', percent(quota.limit)));
  }
  if (quota.memory !== null) {
    parts.push(trans.__('memory %1', formatSize(quota.memory)));
  }
  if (quota.resident !== null) {
    parts.push(trans.__('resident %1', formatSize(quota.resident)));
  }
  if (quota.service !== null) {
    parts.push(quota.service);
  }
  return parts.length > 0 ? parts.join(', ') : trans.__('none');
}
