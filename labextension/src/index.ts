/** List of the plugins of this extension. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { actionsPlugin } from './actions/plugin';
import { statusItemPlugin } from './status/statusItemPlugin';
import { toolbarPlugin } from './status/toolbarPlugin';
import { panelPlugin } from './panel/plugin';
import { waitingPlugin } from './waiting/plugin';
import { idlenessPlugin } from './idleness/plugin';
import { sharingPlugin } from './sharingPlugin';

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
