import { Token } from '@lumino/coreutils';

import type { ISharingModel } from './model/sharing';
import type { IVisibility } from './visibility';

/** What every view of GPU sharing stands on. */
export interface IGpuSharing {
  readonly model: ISharingModel;
  readonly visibility: IVisibility;
}

/** The token by which views ask for the shared state. */
export const IGpuSharing = new Token<IGpuSharing>(
  'jupyter-gpushare:IGpuSharing',
  'The state of GPU sharing between notebook kernels, kept up to date.'
);

/** The name under which the texts are translated. */
export const TRANSLATION_DOMAIN = 'jupyter_gpushare';
