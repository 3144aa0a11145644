import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Dialog, showDialog } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import {
  ITranslator,
  nullTranslator,
  type TranslationBundle
} from '@jupyterlab/translation';
import { createElement } from 'react';

import { CommandIDs } from '../commands';
import { StatusItem } from '../components/statusitem';
import { StatusItemModel } from '../model/statusitem';
import { IGpuSharing, SETTINGS_ID, TRANSLATION_DOMAIN } from '../tokens';
import { currentKernel } from './current';

/** Shows in the status bar whether the current notebook has the GPU. */
export const statusItemPlugin: JupyterFrontEndPlugin<void> = {
  id: SETTINGS_ID,
  description: 'Shows in the status bar whether the notebook has the GPU.',
  autoStart: true,
  requires: [IGpuSharing, INotebookTracker],
  optional: [IStatusBar, IConsoleTracker, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    sharing: IGpuSharing,
    notebooks: INotebookTracker,
    statusBar: IStatusBar | null,
    consoles: IConsoleTracker | null,
    translator: ITranslator | null
  ): void => {
    if (!statusBar) {
      return; // Notebook 7 has none.
    }
    const trans = (translator ?? nullTranslator).load(TRANSLATION_DOMAIN);
    const current = currentKernel(app, notebooks, consoles);
    const model = new StatusItemModel({
      sharing: sharing.model,
      visibility: sharing.visibility,
      current,
      trans
    });
    const item = new StatusItem({
      model,
      trans,
      onActivate: () => {
        if (app.commands.hasCommand(CommandIDs.openPanel)) {
          void app.commands.execute(CommandIDs.openPanel);
        } else {
          void showDetails(model, trans);
        }
      }
    });
    statusBar.registerStatusItem(SETTINGS_ID, {
      item,
      // Beside the kernel's name and status.
      align: 'left',
      rank: 2,
      priority: 1,
      isActive: () => model.isShown,
      activeStateChanged: model.stateChanged
    });
    item.disposed.connect(() => {
      model.dispose();
      current.dispose();
    });
    const apply = () => {
      model.isEnabled = sharing.settings.values.showStatusItem;
    };
    sharing.settings.changed.connect(apply);
    apply();
  }
};

/** Show the explanation where the panel's plugin is switched off. */
function showDetails(
  { text, details }: StatusItemModel,
  trans: TranslationBundle
): Promise<unknown> {
  const lines = details.map(({ label, value }) =>
    createElement('div', { key: label + value }, `${label}: ${value}`)
  );
  return showDialog({
    title: text,
    body: createElement('div', null, lines),
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
