import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { addCommands } from '../actioncommands';
import { ACTIONS, CommandIDs } from '../commands';
import type { ICurrentKernel } from '../model/current';
import { IGpuSharing, TRANSLATION_DOMAIN } from '../tokens';
import { currentKernel } from './current';

/** The commands by which users change what a client gets. */
export const actionsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:actions',
  description: 'Adds the commands about GPU sharing.',
  autoStart: true,
  requires: [IGpuSharing, INotebookTracker],
  optional: [ICommandPalette, IConsoleTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    sharing: IGpuSharing,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    consoles: IConsoleTracker | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(TRANSLATION_DOMAIN);
    const current = currentKernel(app, notebooks, consoles);
    addCommands(app.commands, sharing, current, trans);
    watchOnceNeeded(sharing, current);
    for (const command of [...ACTIONS, CommandIDs.changeSettings]) {
      palette?.addItem({ command, category: trans.__('GPU sharing') });
    }
  }
};

/** From the first kernel on, for the commands follow the state of its client. */
function watchOnceNeeded(
  { model }: IGpuSharing,
  current: ICurrentKernel
): void {
  const check = () => {
    if (current.kernelId !== null) {
      current.changed.disconnect(check);
      model.watch();
    }
  };
  current.changed.connect(check);
  check();
}
