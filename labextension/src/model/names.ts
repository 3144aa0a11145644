import type { TranslationBundle } from '@jupyterlab/translation';

import type { IClient } from '../protocol';

/**
 * What to call a client in a sentence: the notebook's file name, of another
 * user's client only the tenant.
 *
 * @param tenant - the user's own, for servers that don't say who owns what
 */
export function nameOf(
  client: IClient,
  trans: TranslationBundle,
  tenant?: string
): string {
  const own = client.own ?? (tenant ?? client.tenant) === client.tenant;
  return own
    ? shortLabel(client.label || client.id)
    : trans.__('a notebook of %1', client.tenant);
}

/** Whether it is a program under `jupyter gpushare run`: it has no document. */
export function isProgram({ id }: Pick<IClient, 'id'>): boolean {
  return id.startsWith('run:');
}

/** A path's last part; commands, which have words, stay as they are. */
export function shortLabel(label: string): string {
  const isPath = label.endsWith('.ipynb') || !/\s/.test(label);
  return (isPath && label.slice(label.lastIndexOf('/') + 1)) || label;
}
