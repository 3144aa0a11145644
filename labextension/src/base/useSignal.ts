import type { ISignal } from '@lumino/signaling';
import * as React from 'react';

/**
 * A value that is another one whenever a signal says so. It is drawn before
 * the browser does anything else, so that what it costs can be measured.
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
