import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';

import { addCommands } from './actionCommands';
import { ACTIONS, CommandIDs } from '../base/commands';
import { IGpuSharing } from '../tokens';
import { trans } from '../base/trans';

/** The commands by which users change what a client gets. */
export const actionsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:actions',
  description: 'Adds the commands about GPU sharing.',
  autoStart: true,
  requires: [IGpuSharing],
  optional: [ICommandPalette],
  activate: (app, sharing: IGpuSharing, palette: ICommandPalette | null) => {
    addCommands(app.commands, sharing);
    // The commands follow the state of its client.
    sharing.model.watchFrom(sharing.current);
    for (const command of [...ACTIONS, CommandIDs.changeSettings]) {
      palette?.addItem({ command, category: trans.__('GPU sharing') });
    }
  }
};
