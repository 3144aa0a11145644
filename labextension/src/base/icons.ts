/** Icon of this extension. */

import { LabIcon } from '@jupyterlab/ui-components';

import gpuSvg from '../../style/icons/gpu.svg';

/**
 * Icon of a graphics card, which follows the theme through JupyterLab's icon
 * classes.
 */
export const gpuIcon = new LabIcon({
  name: 'gpushare:gpu',
  svgstr: gpuSvg
});
