/** Plugin of the status item. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, showDialog } from '@jupyterlab/apputils';
import { IStatusBar } from '@jupyterlab/statusbar';
import { createElement } from 'react';

import { CommandIDs } from '../base/commands';
import { trans } from '../base/trans';
import { IGpuSharing, SETTINGS_ID } from '../tokens';
import { StatusItem } from './statusItem';
import { StatusItemModel } from './statusItemModel';

/** Shows the current kernel's state in the status bar. */
export const statusItemPlugin: JupyterFrontEndPlugin<void> = {
  id: SETTINGS_ID,
  description: 'Shows in the status bar whether the notebook has the GPU.',
  autoStart: true,
  requires: [IGpuSharing],
  optional: [IStatusBar],
  activate: (app, sharing: IGpuSharing, statusBar: IStatusBar | null) => {
    if (!statusBar) {
      return; // Notebook 7 has no status bar.
    }
    const model = new StatusItemModel({ ...sharing, sharing: sharing.model });
    const item = new StatusItem(model, () => {
      if (app.commands.hasCommand(CommandIDs.openPanel)) {
        void app.commands.execute(CommandIDs.openPanel);
      } else {
        void showDetails(model);
      }
    });
    statusBar.registerStatusItem(SETTINGS_ID, {
      item,
      // The item is next to the kernel's name and status.
      align: 'left',
      rank: 2,
      priority: 1,
      isActive: () => model.isShown,
      activeStateChanged: model.stateChanged
    });
    item.disposed.connect(() => model.dispose());
    model.bindTo(sharing.settings, 'showStatusItem');
  }
};

/** Show the details in a dialog, for use without the panel's plugin. */
function showDetails({ text, details }: StatusItemModel): Promise<unknown> {
  const lines = details.map(({ label, value }) =>
    createElement('div', { key: label + value }, `${label}: ${value}`)
  );
  return showDialog({
    title: text,
    body: createElement('div', null, lines),
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
