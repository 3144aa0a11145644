/** Names and numbers of clients. */

import type { IClient } from '../base/protocol';
import { trans } from '../base/trans';

/** Name and number of a client, equal in all parts of the panel. */
export interface IClientLabel {
  readonly id: string;
  /** Number from 1 on, which the name and the client's memory show. */
  readonly number: number;
  readonly name: string;
  readonly isOwn: boolean;
}

/**
 * Return the name of a client within a sentence.
 *
 * The name is the notebook's file name, or the user for a client of another
 * user.
 */
export function displayName(client: IClient): string {
  return client.own
    ? shortLabel(client.label || client.id)
    : trans.__('a notebook of %1', client.user);
}

/**
 * Return whether a client is a program under `jupyter gpushare run`, which has
 * no document.
 */
export function isProgram({ id }: IClient): boolean {
  return id.startsWith('run:');
}

/**
 * Return the last part of a path. A command line, which has spaces, stays
 * whole.
 */
function shortLabel(label: string): string {
  const isPath = label.endsWith('.ipynb') || !/\s/.test(label);
  return (isPath && label.slice(label.lastIndexOf('/') + 1)) || label;
}

/**
 * Labels of clients.
 *
 * A client keeps its number until the client has left and the timeline no
 * longer shows the client. Own clients get the first numbers.
 */
export class ClientLabels {
  /**
   * @param clients - clients of the snapshot
   * @param kept - ids of clients that have left and still need a label
   */
  update(
    clients: ReadonlyArray<IClient>,
    kept: ReadonlyMap<string, unknown>
  ): void {
    const present = new Set(clients.map(client => client.id));
    for (const id of this._labels.keys()) {
      if (!present.has(id) && !kept.has(id)) {
        this._labels.delete(id);
      }
    }
    const taken = new Set([...this._labels.values()].map(n => n.number));
    let next = 1;
    for (const client of [...clients].sort(byOwner)) {
      const known = this._labels.get(client.id);
      const name = displayName(client);
      if (known?.name === name && known.isOwn === client.own) {
        continue;
      }
      while (!known && taken.has(next)) {
        next++;
      }
      const number = known?.number ?? next;
      taken.add(number);
      this._labels.set(client.id, {
        id: client.id,
        number,
        name,
        isOwn: client.own
      });
    }
  }

  /**
   * Return own clients first, then by number, without clients that have no
   * label.
   */
  inOrder(clients: ReadonlyArray<IClient>): [IClient, IClientLabel][] {
    return clients
      .flatMap((client): [IClient, IClientLabel][] => {
        const label = this._labels.get(client.id);
        return label ? [[client, label]] : [];
      })
      .sort(
        ([, a], [, b]) =>
          Number(b.isOwn) - Number(a.isOwn) || a.number - b.number
      );
  }

  /** Return the label of a client; undefined for a client without a label. */
  get(id: string): IClientLabel | undefined {
    return this._labels.get(id);
  }

  private readonly _labels = new Map<string, IClientLabel>();
}

/** Compare two clients: own clients first, then by user and label. */
function byOwner(a: IClient, b: IClient): number {
  return (
    Number(b.own) - Number(a.own) ||
    compare(a.user, b.user) ||
    compare(a.label, b.label) ||
    compare(a.id, b.id)
  );
}

/**
 * Compare two texts by code units, which is fast and does not depend on the
 * language.
 */
function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
