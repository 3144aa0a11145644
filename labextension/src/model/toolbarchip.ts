import type { StatusItemModel } from './statusitem';

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
