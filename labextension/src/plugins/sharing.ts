import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';

import { Api } from '../api';
import { SharingModel } from '../model/sharing';
import { IGpuSharing } from '../tokens';
import { PageVisibility } from '../visibility';

/** Provides the state of sharing; asks the server nothing until it is watched. */
export const sharingPlugin: JupyterFrontEndPlugin<IGpuSharing> = {
  id: 'jupyter-gpushare:sharing',
  description: 'Provides the state of GPU sharing between notebook kernels.',
  autoStart: true,
  provides: IGpuSharing,
  activate: (app: JupyterFrontEnd): IGpuSharing => {
    const visibility = new PageVisibility();
    const api = new Api(app.serviceManager.serverSettings);
    return { visibility, model: new SharingModel({ api, visibility }) };
  }
};
