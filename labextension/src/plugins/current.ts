import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';

import { CurrentKernel } from '../model/current';

/** The kernel of the shell's current document: a notebook, or a console. */
export function currentKernel(
  { shell }: JupyterFrontEnd,
  notebooks: INotebookTracker,
  consoles: IConsoleTracker | null
): CurrentKernel {
  const sources: CurrentKernel.ISource[] = [notebooks.currentChanged];
  if (consoles) {
    sources.push(consoles.currentChanged);
  }
  if (shell.currentChanged) {
    sources.push(shell.currentChanged);
  }
  return new CurrentKernel(sources, () => {
    const current = shell.currentWidget;
    const owner =
      notebooks.currentWidget === current
        ? notebooks.currentWidget
        : consoles?.currentWidget === current
          ? consoles?.currentWidget
          : null;
    return owner?.sessionContext ?? null;
  });
}
