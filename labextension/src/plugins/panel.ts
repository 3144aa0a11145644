import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../commands';
import { Panel } from '../components/panel';
import { gpuIcon } from '../icons';
import { PanelModel } from '../model/panel';
import { IGpuSharing, TRANSLATION_DOMAIN } from '../tokens';
import { addOpenDocument } from './document';

/** After JupyterLab's own panels on the right: properties, debugger. */
const RANK = 700;

/** The side panel: who has the GPU, who waits, and what happened. */
export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:panel',
  description: 'Shows in a side panel how the GPU is shared.',
  autoStart: true,
  requires: [IGpuSharing, INotebookTracker],
  optional: [IConsoleTracker, ICommandPalette, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    sharing: IGpuSharing,
    notebooks: INotebookTracker,
    consoles: IConsoleTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(TRANSLATION_DOMAIN);
    const { model: state, ...parts } = sharing;
    const model = new PanelModel({ ...parts, sharing: state, trans });
    const { commands, shell } = app;
    const trackers = consoles ? [notebooks, consoles] : [notebooks];
    addOpenDocument(app, sharing, trackers, trans);
    const panel = new Panel({ model, commands, trans });
    shell.add(panel, 'right', { rank: RANK, type: 'GPU Sharing' });
    restorer?.add(panel, panel.id);
    commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Show GPU Sharing'),
      caption: trans.__('Show who has the GPU, who waits, and what happened'),
      icon: gpuIcon,
      describedBy: { args: { type: 'object', properties: {} } },
      execute: () => shell.activateById(panel.id)
    });
    palette?.addItem({
      command: CommandIDs.openPanel,
      category: trans.__('GPU Sharing')
    });
  }
};
