/** Plugin of the toolbar item. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';

import { CurrentKernel } from '../sharing/currentKernel';
import { IGpuSharing } from '../tokens';
import { toolbarMenu } from '../actions/actionMenu';
import { StatusItemModel } from './statusItemModel';
import { ToolbarChip } from './toolbarChip';

/** Name of the toolbar item, as in the settings schema. */
const ITEM = 'gpushare';

/** Shows the kernel's state in the toolbar of a shared notebook. */
export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:toolbar',
  description: 'Shows in a notebook toolbar whether the notebook has the GPU.',
  autoStart: true,
  requires: [IGpuSharing, IToolbarWidgetRegistry],
  optional: [IStatusBar],
  activate: (
    app,
    sharing: IGpuSharing,
    toolbars: IToolbarWidgetRegistry,
    statusBar: IStatusBar | null
  ) => {
    toolbars.addFactory<NotebookPanel>('Notebook', ITEM, panel => {
      const { sessionContext } = panel;
      const current = new CurrentKernel([], () => sessionContext);
      const model = new StatusItemModel({
        ...sharing,
        sharing: sharing.model,
        current
      });
      const view = () =>
        current.kernelId ? sharing.model.view(current.kernelId) : null;
      const chip = new ToolbarChip({
        model,
        announces: statusBar === null,
        onActivate: toolbarMenu(app.commands, () => {
          const now = view();
          return now?.kind === 'client' ? { client: now.client.id } : {};
        })
      });
      model.bindTo(sharing.settings, 'showToolbarChip');
      chip.disposed.connect(() => {
        model.dispose();
        current.dispose();
      });
      return chip;
    });
  }
};
