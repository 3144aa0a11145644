import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { detailsToggle } from '../components/details';
import { StatusItem } from '../components/statusitem';
import { CurrentKernel } from '../model/current';
import { StatusItemModel } from '../model/statusitem';
import { IGpuSharing, TRANSLATION_DOMAIN } from '../tokens';

const PLUGIN_ID = 'jupyter-gpushare:plugin';

/** Shows in the status bar whether the current notebook has the GPU. */
export const statusItemPlugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Shows in the status bar whether the notebook has the GPU.',
  autoStart: true,
  requires: [IGpuSharing, INotebookTracker],
  optional: [IStatusBar, IConsoleTracker, ISettingRegistry, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    sharing: IGpuSharing,
    notebooks: INotebookTracker,
    statusBar: IStatusBar | null,
    consoles: IConsoleTracker | null,
    settings: ISettingRegistry | null,
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
      onActivate: detailsToggle(model, trans)
    });
    statusBar.registerStatusItem(PLUGIN_ID, {
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
    if (settings) {
      void followSettings(settings, model);
    }
  }
};

/** The kernel of the shell's current document: a notebook, or a console. */
function currentKernel(
  { shell }: JupyterFrontEnd,
  notebooks: INotebookTracker,
  consoles: IConsoleTracker | null
): CurrentKernel {
  const sources: CurrentKernel.ISource[] = [notebooks.currentChanged];
  if (consoles) {
    sources.push(consoles.currentChanged);
  }
  if (shell.currentChanged) {
    sources.push(shell.currentChanged);
  }
  return new CurrentKernel(sources, () => {
    const current = shell.currentWidget;
    const owner =
      notebooks.currentWidget === current
        ? notebooks.currentWidget
        : consoles?.currentWidget === current
          ? consoles?.currentWidget
          : null;
    return owner?.sessionContext ?? null;
  });
}

async function followSettings(
  registry: ISettingRegistry,
  model: StatusItemModel
): Promise<void> {
  try {
    const settings = await registry.load(PLUGIN_ID);
    const apply = () => {
      model.isEnabled = settings.get('showStatusItem').composite as boolean;
    };
    settings.changed.connect(apply);
    apply();
  } catch (error) {
    console.error('The settings of GPU sharing could not be read.', error);
  }
}
