import type { IClient } from '../base/protocol';
import { trans } from '../base/trans';

/** A client as every part of the panel calls and marks it. */
export interface IClientLabel {
  readonly id: string;
  /** Counted from 1; stands beside the name and in the client's memory. */
  readonly number: number;
  readonly name: string;
  readonly isOwn: boolean;
}

/**
 * The name of a client in a sentence: the notebook's file name, of another
 * user's client only the tenant.
 */
export function displayName(client: IClient): string {
  return client.own
    ? shortLabel(client.label || client.id)
    : trans.__('a notebook of %1', client.tenant);
}

/** Whether it is a program under `jupyter gpushare run`: it has no document. */
export function isProgram({ id }: IClient): boolean {
  return id.startsWith('run:');
}

/** A path's last part; commands, which have words, stay as they are. */
function shortLabel(label: string): string {
  const isPath = label.endsWith('.ipynb') || !/\s/.test(label);
  return (isPath && label.slice(label.lastIndexOf('/') + 1)) || label;
}

/**
 * Gives each client a number that it keeps, also for a while after it has left,
 * as long as the timeline shows it. Own ones are counted first.
 */
export class ClientLabels {
  /**
   * @param clients - those of the snapshot
   * @param kept - ids of further ones whose names are still needed
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

  /** Own clients first, then by number; others than were counted are left out. */
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

  /** Undefined for a client that has been in no snapshot, or left long ago. */
  get(id: string): IClientLabel | undefined {
    return this._labels.get(id);
  }

  private readonly _labels = new Map<string, IClientLabel>();
}

/** Own ones first, then by tenant and label: in this order they are counted. */
function byOwner(a: IClient, b: IClient): number {
  return (
    Number(b.own) - Number(a.own) ||
    compare(a.tenant, b.tenant) ||
    compare(a.label, b.label) ||
    compare(a.id, b.id)
  );
}

/** Without regard to language: it only has to be the same each time, and fast. */
function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
