/** Actions on a client or the coordinator, with their dialogs and messages. */

import { Dialog, showDialog } from '@jupyterlab/apputils';
import type { ReadonlyJSONObject } from '@lumino/coreutils';

import type { IClient, IConfig, QuotaChanges } from '../base/protocol';
import { notify } from '../base/notify';
import { trans } from '../base/trans';
import { formatDuration } from '../base/units';
import type { Action, IApi } from '../server/api';
import { displayName } from '../sharing/clientLabels';
import type { FormDialog } from './formDialog';
import { holdSchema, pick, withAllocated } from './formSchemas';

/** Times for which a notification is visible. */
const SUCCESS_MS = 4000;
const FAILURE_MS = 15000;

/** Settings in the dialog. */
const SETTINGS = ['time_quantum', 'policy', 'idle_release', 'sharing'];

/** Proposal of the dialog. */
const DEFAULT_HOLD_SECONDS = 300;

/**
 * Actions on a client or the coordinator, with their dialogs and messages.
 *
 * An action resolves with whether the action was done, and never rejects.
 */
export class Actions {
  constructor(private readonly _api: IApi) {}

  /** Show the reason why an action is not done. */
  refuse(reason: string): false {
    return this._fail(new Error(reason));
  }

  async cancelStart(kernelId: string): Promise<boolean> {
    return this._do(async () => {
      await this._api.cancelStart(kernelId);
      return trans.__('The start of the kernel has been cancelled.');
    });
  }

  async changeQuota(client: IClient): Promise<boolean> {
    const name = displayName(client);
    return this._ask(trans.__('GPU quota of %1', name), async () => {
      const { schema, ...quota } = await this._api.quota(client.id);
      return {
        schema: withAllocated(schema, client),
        values: pick(quota, schema.properties),
        send: async changes => {
          await this._api.setQuota(client.id, changes as QuotaChanges);
          this._report(trans.__('%1 has a new quota.', name));
        }
      };
    });
  }

  async changeSettings(): Promise<boolean> {
    return this._ask(trans.__('GPU sharing settings'), async () => {
      const { schema, ...config } = await this._api.config();
      const properties = pick(schema.properties, SETTINGS);
      return {
        intro: trans.__(
          'Changes apply to all users of the GPUs of this host until the coordinator stops.'
        ),
        schema: { ...schema, properties },
        values: pick(config, properties) as ReadonlyJSONObject,
        send: async changes => {
          const now = await this._api.setConfig(changes);
          const applied = Object.keys(changes).map(
            name => `${properties[name].title} = ${now[name]}`
          );
          this._report(
            trans.__(
              'Changed until the coordinator stops: %1.',
              applied.join(', ')
            )
          );
        }
      };
    });
  }

  /**
   * Hold the devices.
   *
   * @param seconds - 0 to end the hold; undefined for a dialog
   * @param config - settings that bound the time; null if unknown
   */
  async hold(
    client: IClient,
    seconds: number | undefined,
    config: IConfig | null
  ): Promise<boolean> {
    if (seconds !== undefined) {
      return this._do(() => this._hold(client, seconds));
    }
    const maxHold = config?.max_hold ?? DEFAULT_HOLD_SECONDS;
    const title = trans.__('Hold the GPU for %1', displayName(client));
    return this._ask(title, async () => ({
      schema: holdSchema(maxHold, client.hold_seconds_left !== null),
      values: { seconds: Math.min(DEFAULT_HOLD_SECONDS, maxHold) },
      present: {},
      send: async changes =>
        this._report(await this._hold(client, changes.seconds as number))
    }));
  }

  /**
   * Do an action without arguments. For a client of another user, ask first.
   */
  async act(client: IClient, action: Action): Promise<boolean> {
    const { title, meaning, label, done } = this._texts(client)[action];
    if (!client.own && meaning) {
      const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label })];
      const { button } = await showDialog({ title, body: meaning, buttons });
      if (!button.accept) {
        return false;
      }
    }
    return this._do(async () => {
      await this._api.act(client.id, action);
      return done;
    });
  }

  private async _hold(client: IClient, seconds: number): Promise<string> {
    const name = displayName(client);
    const left = await this._api.hold(client.id, seconds);
    return left === null
      ? trans.__('%1 no longer holds the GPU.', name)
      : trans.__(
          '%1 keeps the GPU for %2, also between cells.',
          name,
          formatDuration(left)
        );
  }

  /**
   * Return the texts of the actions. An action without `meaning` needs no
   * question.
   */
  private _texts(client: IClient): Readonly<Record<Action, ITexts>> {
    const name = displayName(client);
    return {
      release: {
        title: trans.__('Give up the turn of %1?', name),
        meaning: trans.__(
          'The turn ends, and the next client in the queue runs.'
        ),
        label: trans.__('Give up'),
        done: trans.__('%1 gives up its turn.', name)
      },
      evict: {
        title: trans.__('Move memory of %1?', name),
        meaning: trans.__(
          'The memory returns with the next turn. If the client has a turn now, the turn ends first.'
        ),
        label: trans.__('Move out'),
        done: trans.__(
          'The memory of %1 moves off the GPU and returns with the next turn.',
          name
        )
      },
      suspend: {
        title: trans.__('Suspend %1?', name),
        meaning: trans.__(
          'The cells of this client wait, and its memory moves off the GPU, until you resume the client.'
        ),
        label: trans.__('Suspend'),
        done: trans.__(
          '%1 is suspended: its cells wait until you resume it, and its memory moves off the GPU.',
          name
        )
      },
      resume: { done: trans.__('%1 takes turns again.', name) }
    };
  }

  private async _ask(
    title: string,
    prepare: () => Promise<Omit<FormDialog.IOptions, 'title' | 'trans'>>
  ): Promise<boolean> {
    let dialog: FormDialog;
    try {
      const form = await prepare();
      // The module is loaded late because its validator is large and rarely
      // needed.
      const { FormDialog } = await import('./formDialog');
      // eslint-disable-next-line jupyter/require-disposable-ownership -- a dialog that closes disposes of itself
      dialog = new FormDialog({ title, ...form });
    } catch (error) {
      return this._fail(error);
    }
    return dialog.ask();
  }

  private async _do(work: () => Promise<string>): Promise<boolean> {
    try {
      this._report(await work());
      return true;
    } catch (error) {
      return this._fail(error);
    }
  }

  private _report(text: string): void {
    notify('success', text, SUCCESS_MS);
  }

  private _fail(error: unknown): false {
    notify('error', (error as Error).message, FAILURE_MS);
    return false;
  }
}

interface ITexts {
  title?: string;
  meaning?: string;
  label?: string;
  done: string;
}
