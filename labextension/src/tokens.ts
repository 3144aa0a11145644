import { Token } from '@lumino/coreutils';

import type { SettingsModel } from './base/settings';
import type { IServerAccess } from './server/api';
import type { ICurrentKernel } from './sharing/currentKernel';
import type { SharingModel } from './sharing/sharingModel';
import type { HistoryModel } from './history/historyModel';

/** What every view of GPU sharing stands on. */
export interface IGpuSharing extends IServerAccess {
  readonly model: SharingModel;
  readonly history: HistoryModel;
  readonly settings: SettingsModel;
  readonly current: ICurrentKernel;
}

/** The token by which views ask for the shared state. */
export const IGpuSharing = new Token<IGpuSharing>(
  'jupyter-gpushare:IGpuSharing',
  'The state of GPU sharing between notebook kernels, kept up to date.'
);

/** The plugin whose schema has the settings of all. */
export const SETTINGS_ID = 'jupyter-gpushare:plugin';
