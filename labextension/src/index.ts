import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { actionsPlugin } from './plugins/actions';
import { idlenessPlugin } from './plugins/idleness';
import { panelPlugin } from './plugins/panel';
import { sharingPlugin } from './plugins/sharing';
import { statusItemPlugin } from './plugins/statusitem';
import { toolbarPlugin } from './plugins/toolbar';
import { waitingPlugin } from './plugins/waiting';

// eslint-disable-next-line @typescript-eslint/no-explicit-any
const plugins: JupyterFrontEndPlugin<any>[] = [
  sharingPlugin,
  statusItemPlugin,
  panelPlugin,
  actionsPlugin,
  toolbarPlugin,
  waitingPlugin,
  idlenessPlugin
];

export default plugins;
