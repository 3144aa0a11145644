/**
 * Plugin that notifies users of evictions and suspensions by the idle policy.
 */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';

import { CommandIDs } from '../base/commands';
import { notify } from '../base/notify';
import { trans } from '../base/trans';
import { IGpuSharing } from '../tokens';
import { IdleNotifications, notificationText } from './idleNotifications';

/**
 * Notifies when the idle policy evicts or suspends a kernel.
 *
 * The plugin sends no requests to the server. The plugins of open notebooks keep
 * the model up to date.
 */
export const idlenessPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:idleness',
  description: 'Notifies when a kernel that is not used is moved off the GPU.',
  autoStart: true,
  requires: [IGpuSharing],
  activate: (app, sharing: IGpuSharing) => {
    const notices = new IdleNotifications(sharing.model);
    const shown = new Map<string, string>();
    const dismiss = (client: string) => {
      const notification = shown.get(client);
      if (notification !== undefined) {
        shown.delete(client);
        Notification.dismiss(notification);
      }
    };

    notices.raised.connect((_, client) => {
      dismiss(client.id);
      if (!sharing.settings.values.notifyIdle) {
        return;
      }
      const open = {
        label: trans.__('Open Document'),
        callback: () => {
          const args = { client: client.id };
          void app.commands.execute(CommandIDs.openDocument, args);
        }
      };
      // The notification stays, because the user may return much later.
      shown.set(
        client.id,
        notify('info', notificationText(client), false, [open])
      );
    });
    notices.cleared.connect((_, client) => dismiss(client));
  }
};
