import { Signal } from '@lumino/signaling';
import type { Session } from '@jupyterlab/services';

import { Disposable } from '../base/disposable';
import type { IServerAccess } from './api';

/** Milliseconds. */
const RETRY_DELAY_MS = 5000;

/**
 * Which client a Jupyter kernel belongs to, asked once per kernel.
 *
 * The ids are equal where our provisioner started the kernel, but not where the
 * kernelspec's own launcher did; so the server is always asked.
 */
export class KernelClients extends Disposable {
  constructor(private readonly _options: IServerAccess) {
    super();
  }

  /** Emitted when an answer has arrived, or it is time to ask again. */
  readonly changed = new Signal<this, void>(this);

  /**
   * The client id, null for a kernel that is not shared, or undefined if that
   * is not known yet; then the server is asked and {@link changed} follows.
   */
  clientOf(kernelId: string): string | null | undefined {
    const known = this._known.get(kernelId);
    if (!known?.isFresh) {
      void this._ask(kernelId);
    }
    return known?.client;
  }

  /** Ask again at the next look; until then the old answer is given. */
  recheck(kernelId: string): void {
    this._questions.delete(kernelId);
    const known = this._known.get(kernelId);
    if (known) {
      this._known.set(kernelId, { ...known, isFresh: false });
    }
  }

  /**
   * Recheck the kernels without a client among these ids: a kernel that was not
   * shared may have been late to register, or have come back under another id.
   */
  recheckMissing(clientIds: ReadonlySet<string>): void {
    for (const [kernelId, { client }] of this._known) {
      if (client === null || !clientIds.has(client)) {
        this.recheck(kernelId);
      }
    }
  }

  dispose(): void {
    this._retryTimers.forEach(timer => clearTimeout(timer));
    this._retryTimers.clear();
    super.dispose();
  }

  private async _ask(kernelId: string): Promise<void> {
    if (this._questions.has(kernelId) || this._options.visibility.hidden) {
      return;
    }
    const question = {};
    this._questions.set(kernelId, question);
    let client: string | null;
    try {
      client = await this._options.api.clientOf(kernelId);
    } catch {
      // The question stays open until then, so that frequent snapshots don't
      // make for frequent requests.
      this._retryLater(kernelId, question);
      return;
    }
    if (this.isDisposed || this._questions.get(kernelId) !== question) {
      return; // Rechecked meanwhile: this answer may be of before.
    }
    this._questions.delete(kernelId);
    this._known.set(kernelId, { client, isFresh: true });
    this.changed.emit();
  }

  private _retryLater(kernelId: string, question: object): void {
    if (this.isDisposed) {
      return;
    }
    const timer = setTimeout(() => {
      this._retryTimers.delete(timer);
      if (this._questions.get(kernelId) === question) {
        this._questions.delete(kernelId);
        this.changed.emit();
      }
    }, RETRY_DELAY_MS);
    this._retryTimers.add(timer);
  }

  private readonly _known = new Map<string, IAnswer>();
  private readonly _questions = new Map<string, object>();
  private readonly _retryTimers = new Set<ReturnType<typeof setTimeout>>();
}

interface IAnswer {
  readonly client: string | null;
  readonly isFresh: boolean;
}

/**
 * The session whose kernel belongs to a client.
 *
 * @param sessions - those that run on this server
 * @param clientOf - asked for kernels that have another id than their client,
 *   as those have that the kernelspec's launcher started
 * @returns null if none does: it may be of another server, or a program
 */
export async function findSession(
  client: string,
  sessions: ReadonlyArray<Session.IModel>,
  clientOf: (kernelId: string) => Promise<string | null>
): Promise<Session.IModel | null> {
  const same = sessions.find(session => session.kernel?.id === client);
  if (same) {
    return same;
  }
  const found = await Promise.all(
    sessions.map(async session =>
      session.kernel && (await clientOf(session.kernel.id)) === client
        ? session
        : null
    )
  );
  return found.find(session => session !== null) ?? null;
}
