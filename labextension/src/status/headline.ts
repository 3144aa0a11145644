/**
 * Texts of the status item and of the toolbar item for the state of a kernel.
 */

import { trans } from '../base/trans';
import { nextText, shortState } from '../sharing/clientState';
import { placeText } from '../sharing/waitingStart';
import type { KernelView } from '../sharing/sharingModel';

/**
 * Return the status item's text.
 *
 * The text for screen readers has no times, because times change every second.
 */
export function formatHeadline(view: KernelView, hasTimes = true): string {
  const state = formatState(view);
  if (view.kind === 'starting' && hasTimes) {
    return trans.__('node: %1', placeText(view));
  }
  if (view.kind !== 'client') {
    return state;
  }
  const { next, simulated } = view;
  const timed = next && hasTimes ? `${state} · ${nextText(next)}` : state;
  const { node } = view.client;
  const text = node ? trans.__('%1 · on %2', timed, node) : timed;
  return simulated ? trans.__('%1 (simulated)', text) : text;
}

/**
 * Return the text without times and without the mark of a simulated device.
 */
export function formatState(view: KernelView): string {
  switch (view.kind) {
    case 'unknown':
      return '';
    case 'unavailable':
      return trans.__('GPU: sharing service unavailable');
    case 'unshared':
      return trans.__('GPU: not shared');
    case 'elsewhere':
      return trans.__('GPU: on %1', view.node);
    case 'starting':
      return trans.__('node: #%1', view.start.position);
    case 'client':
      return trans.__('GPU: %1', shortState(view.client));
  }
}

/** Longest texts that {@link shortState} can return, one of each kind. */
const LONGEST_STATES = [
  'idle for long',
  'idle, moved off',
  'waiting for room',
  '#99 in queue',
  'turn overrun',
  'suspended, idle'
];

/** Return the text of the toolbar item, whose space is narrow. */
export function chipText(view: KernelView): string {
  return view.kind === 'unavailable'
    ? trans.__('GPU: unavailable')
    : formatState(view);
}

/**
 * Return the longest texts of the toolbar item, one on each line. CSS reserves
 * their width.
 */
export function chipTexts(): string {
  return LONGEST_STATES.map(state => trans.__('GPU: %1', state))
    .concat(chipText({ kind: 'unavailable', message: '' }))
    .join('\n');
}
