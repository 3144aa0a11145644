import { trans } from '../base/trans';
import { formatState } from '../sharing/format';
import type { KernelView } from '../sharing/sharingModel';

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
  return view.kind === 'away' ? trans.__('GPU: away') : formatState(view);
}

/** The longest texts of the chip of a shared kernel, a line each. */
export function chipTexts(): string {
  return STATES.map(state => trans.__('GPU: %1', state))
    .concat(chipText({ kind: 'away', message: '' }))
    .join('\n');
}
