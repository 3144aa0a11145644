/** Token of the shared state, and the id of the plugin with the settings. */

import { Token } from '@lumino/coreutils';

import type { SettingsModel } from './base/settings';
import type { IServerAccess } from './server/api';
import type { ICurrentKernel } from './sharing/currentKernel';
import type { SharingModel } from './sharing/sharingModel';
import type { HistoryModel } from './history/historyModel';

/** Shared state for all views of GPU sharing. */
export interface IGpuSharing extends IServerAccess {
  readonly model: SharingModel;
  readonly history: HistoryModel;
  readonly settings: SettingsModel;
  readonly current: ICurrentKernel;
}

/** Token by which a view requires the shared state. */
export const IGpuSharing = new Token<IGpuSharing>(
  'jupyter-gpushare:IGpuSharing',
  'The state of GPU sharing between notebook kernels, kept up to date.'
);

/** Plugin whose schema has the settings of all plugins. */
export const SETTINGS_ID = 'jupyter-gpushare:plugin';
