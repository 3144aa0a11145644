import type { TranslationBundle } from '@jupyterlab/translation';

import type { IClient } from '../protocol';
import { countDown } from './turns';

/** What has become of a client that nobody uses, or is about to. */
export type Idleness =
  | { readonly kind: 'warned' | 'evicted' | 'suspended' }
  | {
      /** Its memory leaves the device, or it is suspended. */
      readonly kind: 'evicts' | 'suspends';
      /** Seconds until then. */
      readonly left: number;
    };

/**
 * Null where it is in use, or idle and nothing more. `%gpushare` and the widget
 * say the same (`kernel/texts.py`).
 *
 * @param age - seconds since the snapshot
 */
export function idlenessOf(client: IClient, age: number): Idleness | null {
  if (client.suspended_by_policy) {
    return { kind: 'suspended' };
  }
  const evicted = countDown(client.evicted_in ?? null, age);
  const suspended = countDown(client.suspended_in ?? null, age);
  if (client.idle_warned && evicted !== null && isNext(evicted, suspended)) {
    return { kind: 'evicts', left: evicted };
  }
  if (client.idle_warned && suspended !== null) {
    return { kind: 'suspends', left: suspended };
  }
  if (client.evicted_by_policy) {
    return { kind: 'evicted' };
  }
  return client.idle_warned && client.resident > 0 ? { kind: 'warned' } : null;
}

/** The status item's words for it, without times. */
export function idlenessText(
  { kind }: Idleness,
  trans: TranslationBundle
): string {
  switch (kind) {
    case 'suspended':
      return trans.__('GPU: suspended for being idle');
    case 'evicted':
      return trans.__('GPU: idle · memory moved off');
    default:
      return trans.__('GPU: idle for long');
  }
}

/** The same in as few words as there is room for in a toolbar. */
export function shortIdlenessText(
  kind: Idleness['kind'],
  trans: TranslationBundle
): string {
  switch (kind) {
    case 'suspended':
      return trans.__('GPU: suspended, idle');
    case 'evicted':
      return trans.__('GPU: idle, moved off');
    default:
      return trans.__('GPU: idle for long');
  }
}

function isNext(evicted: number, suspended: number | null): boolean {
  return suspended === null || evicted < suspended;
}
