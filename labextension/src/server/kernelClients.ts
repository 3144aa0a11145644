/** Lookup of the client of a kernel, and of the session of a client. */

import { Signal } from '@lumino/signaling';
import type { Session } from '@jupyterlab/services';

import { Disposable } from '../base/disposable';
import type { ISharedKernel } from '../base/protocol';
import type { IServerAccess } from './api';

const RETRY_DELAY_MS = 5000;

/**
 * Clients of Jupyter kernels, with one request per kernel.
 *
 * A kernel that the provisioner started has its client's id. A kernel that the
 * kernelspec's own launcher started has another id, so the server is always
 * asked.
 */
export class KernelClients extends Disposable {
  constructor(private readonly _options: IServerAccess) {
    super();
  }

  /** Emitted when an answer has arrived, or a new request is due. */
  readonly changed = new Signal<this, void>(this);

  /**
   * Return the client id, null for a kernel that is not shared, or undefined if
   * unknown. In the last case, send a request, after which {@link changed}
   * follows.
   */
  clientOf(kernelId: string): string | null | undefined {
    const known = this._known.get(kernelId);
    if (!known?.isFresh) {
      void this._ask(kernelId);
    }
    return known && (known.kernel?.client ?? null);
  }

  /** Return the node of a kernel; empty for this host, or if unknown. */
  nodeOf(kernelId: string): string {
    return this._known.get(kernelId)?.kernel?.node ?? '';
  }

  /**
   * Send a new request at the next call of {@link clientOf}. Until the answer,
   * the old answer holds.
   */
  recheck(kernelId: string): void {
    this._questions.delete(kernelId);
    const known = this._known.get(kernelId);
    if (known) {
      this._known.set(kernelId, { ...known, isFresh: false });
    }
  }

  /**
   * Recheck kernels whose client is not among these ids.
   *
   * Such a kernel may have registered late, or may have restarted under another
   * id.
   */
  recheckMissing(clientIds: ReadonlySet<string>): void {
    for (const [kernelId, { kernel }] of this._known) {
      if (kernel === null || !clientIds.has(kernel.client)) {
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
    let kernel: ISharedKernel | null;
    try {
      kernel = await this._options.api.kernel(kernelId);
    } catch {
      // The kernel stays in `_questions` until the retry, so that frequent
      // snapshots cause no frequent requests.
      this._retryLater(kernelId, question);
      return;
    }
    if (this.isDisposed || this._questions.get(kernelId) !== question) {
      return; // The kernel was rechecked meanwhile, so the answer may be outdated.
    }
    this._questions.delete(kernelId);
    this._known.set(kernelId, { kernel, isFresh: true });
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
  readonly kernel: ISharedKernel | null;
  readonly isFresh: boolean;
}

/**
 * Return the session whose kernel belongs to a client.
 *
 * @param sessions - running sessions of this server
 * @param clientOf - lookup for kernels whose id differs from their client's id
 * @returns null for a program, or a client of another server
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
