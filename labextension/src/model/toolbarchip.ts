import type { TranslationBundle } from '@jupyterlab/translation';

import type { Phase } from '../protocol';
import { formatState, heldText, phaseText } from './format';
import { shortIdlenessText } from './idleness';
import type { KernelView } from './sharing';
import type { StatusItemModel } from './statusitem';

const PHASES: ReadonlyArray<Phase> = [
  'idle',
  'waiting',
  'running',
  'draining',
  'overrun',
  'suspended'
];

const IDLENESS = ['warned', 'evicted', 'suspended'] as const;

/** The headline in as few words as there is room for in a toolbar. */
export function chipText(view: KernelView, trans: TranslationBundle): string {
  if (view.kind === 'away') {
    return trans.__('GPU: away');
  }
  return view.kind === 'client' && view.idleness
    ? shortIdlenessText(view.idleness.kind, trans)
    : formatState(view, trans);
}

/** What the chip of a shared kernel may read, a line each. */
export function chipTexts(trans: TranslationBundle): string {
  return PHASES.map(phase => phaseText({ phase, queue_position: 99 }, trans))
    .concat(IDLENESS.map(kind => shortIdlenessText(kind, trans)))
    .concat(heldText(trans), chipText({ kind: 'away', message: '' }, trans))
    .join('\n');
}

/**
 * Tell when the chip of a notebook is to be seen: while its kernel is shared.
 * Without a coordinator that cannot be told of kernels that were not seen
 * before.
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
