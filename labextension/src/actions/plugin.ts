/** Plugin of the commands by which users change clients and settings. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';

import { ACTIONS, CommandIDs } from '../base/commands';
import { trans } from '../base/trans';
import { IGpuSharing } from '../tokens';
import { addCommands } from './actionCommands';

/** Commands by which users change clients and settings. */
export const actionsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:actions',
  description: 'Adds the commands about GPU sharing.',
  autoStart: true,
  requires: [IGpuSharing],
  optional: [ICommandPalette],
  activate: (app, sharing: IGpuSharing, palette: ICommandPalette | null) => {
    addCommands(app.commands, sharing);
    // The state of the commands follows the state of the current client.
    sharing.model.watchFrom(sharing.current);
    for (const command of [...ACTIONS, CommandIDs.changeSettings]) {
      palette?.addItem({ command, category: trans.__('GPU Sharing') });
    }
  }
};
