/** Plugin of the side panel. */

import {
  ILayoutRestorer,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';

import { CommandIDs } from '../base/commands';
import { gpuIcon } from '../base/icons';
import { trans } from '../base/trans';
import { IGpuSharing } from '../tokens';
import { addOpenDocument } from '../actions/openDocument';
import { Panel } from './panel';
import { PanelModel } from './panelModel';

/** Rank after JupyterLab's own panels on the right: properties and debugger. */
const RANK = 700;

/** Side panel with devices, clients, queues and history. */
export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:panel',
  description: 'Shows in a side panel how the GPU is shared.',
  autoStart: true,
  requires: [IGpuSharing, INotebookTracker],
  optional: [IConsoleTracker, ICommandPalette, ILayoutRestorer],
  activate: (
    app,
    sharing: IGpuSharing,
    notebooks: INotebookTracker,
    consoles: IConsoleTracker | null,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null
  ) => {
    const { model: state, ...parts } = sharing;
    const model = new PanelModel({ ...parts, sharing: state });
    const { commands, shell } = app;
    const trackers = consoles ? [notebooks, consoles] : [notebooks];
    addOpenDocument(app, sharing, trackers);
    const panel = new Panel(model, commands);
    shell.add(panel, 'right', { rank: RANK, type: 'GPU Sharing' });
    restorer?.add(panel, panel.id);
    commands.addCommand(CommandIDs.openPanel, {
      label: trans.__('Show GPU Sharing'),
      caption: trans.__(
        'Show devices, running and waiting clients, and their history'
      ),
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
