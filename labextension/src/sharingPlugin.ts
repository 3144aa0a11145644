/** Plugin that provides the state of sharing to the other plugins. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IConsoleTracker } from '@jupyterlab/console';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator } from '@jupyterlab/translation';

import { PageVisibility } from './base/browser';
import { SettingsModel } from './base/settings';
import { translate } from './base/trans';
import { Api } from './server/api';
import { currentKernel } from './sharing/currentKernel';
import { SharingModel } from './sharing/sharingModel';
import { HistoryModel } from './history/historyModel';
import { IGpuSharing, SETTINGS_ID } from './tokens';

/**
 * Provides the state of sharing. The server gets no requests until a view
 * watches.
 */
export const sharingPlugin: JupyterFrontEndPlugin<IGpuSharing> = {
  id: 'jupyter-gpushare:sharing',
  description: 'Provides the state of GPU sharing between notebook kernels.',
  autoStart: true,
  provides: IGpuSharing,
  requires: [INotebookTracker],
  optional: [IConsoleTracker, ISettingRegistry, ITranslator],
  activate: (
    app,
    notebooks: INotebookTracker,
    consoles: IConsoleTracker | null,
    registry: ISettingRegistry | null,
    translator: ITranslator | null
  ) => {
    if (translator) {
      translate(translator);
    }
    const visibility = new PageVisibility();
    const api = new Api(app.serviceManager.serverSettings);
    const settings = new SettingsModel();
    const model = new SharingModel({ api, visibility });
    settings.changed.connect(() => {
      model.pollInterval = settings.values.pollInterval;
    });
    if (registry) {
      void follow(registry, settings);
    }
    const history = new HistoryModel({ api, visibility, sharing: model });
    const current = currentKernel(app, notebooks, consoles);
    return { visibility, api, settings, model, history, current };
  }
};

async function follow(
  registry: ISettingRegistry,
  model: SettingsModel
): Promise<void> {
  try {
    const settings = await registry.load(SETTINGS_ID);
    const apply = () => model.update(settings.composite);
    settings.changed.connect(apply);
    apply();
    model.keep = (name, value) => {
      settings
        .set(name, value)
        .catch(error => console.error(`${name} could not be kept.`, error));
    };
  } catch (error) {
    console.error('The settings of GPU sharing could not be read.', error);
  }
}
