import type { TranslationBundle } from '@jupyterlab/translation';

import type { IOutside } from '../protocol';
import { formatSize } from './units';

/**
 * Who uses a device without sharing it, how many processes and how much memory
 * that is; empty: nobody does. The server tells users their own processes, and
 * admins whose each is.
 */
export function outsideText(
  processes: ReadonlyArray<Omit<IOutside, 'memory'> & Partial<IOutside>>,
  trans: TranslationBundle
): string {
  if (processes.length === 0) {
    return '';
  }
  const parts = [trans._n('%1 process', '%1 processes', processes.length)];
  const known = processes.flatMap(({ memory }) => memory ?? []);
  if (known.length > 0) {
    const sum = formatSize(known.reduce((sum, bytes) => sum + bytes, 0));
    parts.push(
      known.length < processes.length ? trans.__('at least %1', sum) : sum
    );
  }
  const users = [...new Set(processes.flatMap(({ user }) => user ?? []))];
  if (users.length > 0) {
    const names = users.sort().join(', ');
    parts.push(
      processes.every(({ user }) => user !== null)
        ? trans.__('of %1', names)
        : trans.__('of %1 and others', names)
    );
  }
  return parts.join(' · ');
}
