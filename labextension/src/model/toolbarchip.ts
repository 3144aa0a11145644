import type { TranslationBundle } from '@jupyterlab/translation';

import { formatState } from './format';
import type { KernelView } from './sharing';
import type { StatusItemModel } from './statusitem';

/** What {@link shortState} may return, the longest of each kind. */
const STATES = [
  'idle for long',
  'idle, moved off',
  '#99 in queue',
  'turn overrun',
  'suspended, idle'
];

/** The headline in as few words as there is room for in a toolbar. */
export function chipText(view: KernelView, trans: TranslationBundle): string {
  return view.kind === 'away'
    ? trans.__('GPU: away')
    : formatState(view, trans);
}

/** The longest texts of the chip of a shared kernel, a line each. */
export function chipTexts(trans: TranslationBundle): string {
  return STATES.map(state => trans.__('GPU: %1', state))
    .concat(chipText({ kind: 'away', message: '' }, trans))
    .join('\n');
}

/**
 * Report when the chip of a notebook is to be seen: while its kernel is shared.
 * Without a coordinator that is not known of kernels that were not seen before.
 */
export function followState(
  model: StatusItemModel,
  show: (isShown: boolean) => void
): void {
  let isShared = false;
  const check = () => {
    const { phase } = model;
    const isClient = !['away', 'unshared', 'unknown', ''].includes(phase);
    isShared = isClient || (isShared && phase === 'away');
    show(model.isShown && isShared);
  };
  model.stateChanged.connect(check);
  check();
}
