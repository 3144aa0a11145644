import { trans } from '../base/trans';
import { nextText, shortState } from '../sharing/clientState';
import type { KernelView } from '../sharing/sharingModel';

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
    case 'unavailable':
      return trans.__('GPU: sharing service away');
    case 'unshared':
      return trans.__('GPU: not shared');
    case 'client':
      return trans.__('GPU: %1', shortState(view.client));
  }
}

/** What {@link shortState} may return, the longest of each kind. */
const STATES = [
  'idle for long',
  'idle, moved off',
  '#99 in queue',
  'turn overrun',
  'suspended, idle'
];

/** The headline in as few words as there is room for in a toolbar. */
export function chipText(view: KernelView): string {
  return view.kind === 'unavailable'
    ? trans.__('GPU: away')
    : formatState(view);
}

/** The longest texts of the chip of a shared kernel, a line each. */
export function chipTexts(): string {
  return STATES.map(state => trans.__('GPU: %1', state))
    .concat(chipText({ kind: 'unavailable', message: '' }))
    .join('\n');
}
