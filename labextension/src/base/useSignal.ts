/** React hook that reads a value again after each signal. */

import type { ISignal } from '@lumino/signaling';
import * as React from 'react';

/**
 * Return a value that is read again each time the signal is emitted.
 *
 * React renders such a change synchronously, so that its cost can be measured.
 */
export function useSignal<T>(
  signal: ISignal<unknown, unknown>,
  value: () => T
): T {
  const subscribe = React.useCallback(
    (listener: () => void) => {
      signal.connect(listener);
      return () => {
        signal.disconnect(listener);
      };
    },
    [signal]
  );
  return React.useSyncExternalStore(subscribe, value);
}
