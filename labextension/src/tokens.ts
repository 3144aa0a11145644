import { Token } from '@lumino/coreutils';

import type { IApi } from './api';
import type { HistoryModel } from './model/history';
import type { SettingsModel } from './model/settings';
import type { SharingModel } from './model/sharing';
import type { IVisibility } from './visibility';

/** What every view of GPU sharing stands on. */
export interface IGpuSharing {
  readonly model: SharingModel;
  readonly history: HistoryModel;
  readonly visibility: IVisibility;
  readonly api: IApi;
  readonly settings: SettingsModel;
}

/** The token by which views ask for the shared state. */
export const IGpuSharing = new Token<IGpuSharing>(
  'jupyter-gpushare:IGpuSharing',
  'The state of GPU sharing between notebook kernels, kept up to date.'
);

/** The plugin whose schema has the settings of all. */
export const SETTINGS_ID = 'jupyter-gpushare:plugin';

/** The name under which the texts are translated. */
export const TRANSLATION_DOMAIN = 'jupyter_gpushare';
