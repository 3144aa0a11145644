import type { TranslationBundle } from '@jupyterlab/translation';

import type { IClient, IQuota } from '../protocol';
import { idlenessText } from './idleness';
import type { IClientView, KernelView } from './sharing';

/** Whole seconds, minutes or hours, rounded up: "12 s", "2 min", "3 h". */
export function formatDuration(
  seconds: number,
  trans: TranslationBundle
): string {
  const whole = Math.ceil(seconds);
  if (whole < 90) {
    return trans.__('%1 s', whole);
  }
  const minutes = Math.ceil(whole / 60);
  return minutes < 90
    ? trans.__('%1 min', minutes)
    : trans.__('%1 h', Math.ceil(minutes / 60));
}

/** Whole units that have passed: "59 s", "1 min", "119 min", "2 h". */
export function formatPassed(
  seconds: number,
  trans: TranslationBundle
): string {
  const minutes = Math.floor(seconds / 60);
  if (minutes === 0) {
    return trans.__('%1 s', Math.floor(seconds));
  }
  return minutes < 120
    ? trans.__('%1 min', minutes)
    : trans.__('%1 h', Math.floor(minutes / 60));
}

/** Seconds until what is left of `seconds` reads differently. */
export function untilNextSecond(seconds: number): number {
  return seconds - Math.ceil(seconds) + 1;
}

/** Bytes in binary units with one decimal: "512 B", "3.2 GiB". */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let amount = bytes;
  while (amount >= 1024 && unit < units.length - 1) {
    amount /= 1024;
    unit++;
  }
  return `${unit === 0 ? amount : Number(amount.toFixed(1))} ${units[unit]}`;
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
  if (view.kind === 'client') {
    const { phase, queue_position: position } = view.client;
    const { idleness } = view;
    if (idleness?.kind === 'evicts') {
      const left = formatDuration(idleness.left, trans);
      return trans.__('GPU: idle · memory moves off in %1', left);
    }
    if (idleness?.kind === 'suspends') {
      const left = formatDuration(idleness.left, trans);
      return trans.__('GPU: idle · suspended in %1', left);
    }
    const seconds = turnLeft(view);
    if (phase === 'running' && seconds !== null) {
      const left = formatDuration(seconds, trans);
      return view.isHeld
        ? trans.__('GPU: held · %1 left', left)
        : trans.__('GPU: running · up to %1 left', left);
    }
    // A wait that has already lasted longer than expected promises nothing.
    if (phase === 'waiting' && position !== null && view.expectedWait) {
      const wait = formatDuration(view.expectedWait, trans);
      return trans.__('GPU: #%1 in queue · about %2', position, wait);
    }
  }
  return formatState(view, trans);
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
      if (view.idleness) {
        return idlenessText(view.idleness, trans);
      }
      return view.isHeld ? heldText(trans) : phaseText(view.client, trans);
  }
}

/** Seconds until its turn or its hold ends; null: it has none, or no end. */
export function turnLeft(view: IClientView): number | null {
  return view.secondsLeft ?? (view.isHeld ? view.holdLeft : null);
}

/** The state of a client that keeps the GPU and runs nothing. */
export function heldText(trans: TranslationBundle): string {
  return trans.__('GPU: held');
}

/** A client's state in a few words. */
export function phaseText(
  client: Pick<IClient, 'phase' | 'queue_position'>,
  trans: TranslationBundle
): string {
  switch (client.phase) {
    case 'idle':
      return trans.__('GPU: idle');
    case 'running':
      return trans.__('GPU: running');
    case 'waiting':
      return client.queue_position === null
        ? trans.__('GPU: waiting')
        : trans.__('GPU: #%1 in queue', client.queue_position);
    case 'draining':
      return trans.__('GPU: turn ending');
    case 'overrun':
      return trans.__('GPU: turn overrun');
    case 'suspended':
      return trans.__('GPU: suspended');
    default:
      return trans.__('GPU: %1', client.phase);
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
    parts.push(trans.__('memory %1', formatBytes(quota.memory)));
  }
  if (quota.resident !== null) {
    parts.push(trans.__('resident %1', formatBytes(quota.resident)));
  }
  if (quota.service !== null) {
    parts.push(quota.service);
  }
  return parts.length > 0 ? parts.join(', ') : trans.__('none');
}
