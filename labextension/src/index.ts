import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { actionsPlugin } from './plugins/actions';
import { sharingPlugin } from './plugins/sharing';
import { statusItemPlugin } from './plugins/statusitem';

// eslint-disable-next-line @typescript-eslint/no-explicit-any
const plugins: JupyterFrontEndPlugin<any>[] = [
  sharingPlugin,
  statusItemPlugin,
  actionsPlugin
];

export default plugins;
