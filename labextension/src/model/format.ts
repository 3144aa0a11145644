import type { TranslationBundle } from '@jupyterlab/translation';

import type { IQuota } from '../protocol';
import type { KernelView } from './sharing';
import { nextText, shortState } from './state';
import { formatSize } from './units';

/** Seconds until what is left of `seconds` reads differently. */
export function untilNextSecond(seconds: number): number {
  return seconds - Math.ceil(seconds) + 1;
}

/** The status bar's text. */
export function formatHeadline(
  view: KernelView,
  trans: TranslationBundle
): string {
  return markSimulated(view, timedState(view, trans), trans);
}

/**
 * What a screen reader says when the state changes: the headline without times,
 * which change every second.
 */
export function formatAnnouncement(
  view: KernelView,
  trans: TranslationBundle
): string {
  return markSimulated(view, formatState(view, trans), trans);
}

function markSimulated(
  view: KernelView,
  text: string,
  trans: TranslationBundle
): string {
  return view.kind === 'client' && view.simulated
    ? trans.__('%1 (simulated)', text)
    : text;
}

function timedState(view: KernelView, trans: TranslationBundle): string {
  const text = formatState(view, trans);
  return view.kind === 'client' && view.next
    ? `${text} · ${nextText(view.next, trans)}`
    : text;
}

/** The headline without times, and without whether it is simulated. */
export function formatState(
  view: KernelView,
  trans: TranslationBundle
): string {
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
export function formatQuota(quota: IQuota, trans: TranslationBundle): string {
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
