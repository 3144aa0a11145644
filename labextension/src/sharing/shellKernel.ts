import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { ISignal } from '@lumino/signaling';

import { CurrentKernel } from './currentKernel';

/** The kernel of the shell's current document: a notebook, or a console. */
export function currentKernel(
  { shell }: JupyterFrontEnd,
  notebooks: INotebookTracker,
  consoles: IConsoleTracker | null
): CurrentKernel {
  const sources = [notebooks, consoles, shell].flatMap(
    (source): ISignal<unknown, unknown>[] =>
      source?.currentChanged ? [source.currentChanged] : []
  );
  return new CurrentKernel(sources, () => {
    const owner = [notebooks.currentWidget, consoles?.currentWidget].find(
      widget => widget && widget === shell.currentWidget
    );
    return owner?.sessionContext ?? null;
  });
}
