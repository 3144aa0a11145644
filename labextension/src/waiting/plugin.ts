/** Plugin that shows the wait below a waiting cell, and notifies of its end. */

import type { JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IConsoleTracker, type ConsolePanel } from '@jupyterlab/console';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';

import { LiveRegion } from '../base/announcement';
import { CommandIDs } from '../base/commands';
import { notify } from '../base/notify';
import { trans } from '../base/trans';
import { formatDuration } from '../base/units';
import { displayName } from '../sharing/clientLabels';
import { IGpuSharing } from '../tokens';
import { DocumentWaits } from './documentWaits';
import type { LongWaitNotifier } from './longWaitNotifier';
import { ConsoleRunningCells, NotebookRunningCells } from './runningCells';

/** Time for which the notification of a wait's end is visible. */
const NOTIFICATION_MS = 10000;

/**
 * Shows under a running cell that the cell waits for the GPU, and reports the
 * end.
 */
export const waitingPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:waiting',
  description: 'Shows under a running cell that the cell waits for the GPU.',
  autoStart: true,
  requires: [IGpuSharing, INotebookTracker],
  optional: [IConsoleTracker, IStatusBar],
  activate: (
    app,
    sharing: IGpuSharing,
    notebooks: INotebookTracker,
    consoles: IConsoleTracker | null,
    statusBar: IStatusBar | null
  ) => {
    const live = new LiveRegion();

    const addWaits = (
      document: DocumentWaits.IOptions['document'],
      runningCells: DocumentWaits.IOptions['runningCells'],
      goLabel: string
    ) => {
      const waits = new DocumentWaits({
        document,
        isInSight: () => app.shell.currentWidget === document,
        runningCells,
        sharing,
        resume: client => {
          void app.commands.execute(CommandIDs.resume, { client });
        },
        announce: text => {
          // The status item announces the state if there is one.
          const { showStatusItem } = sharing.settings.values;
          live.announce(statusBar !== null && showStatusItem ? '' : text);
        }
      });
      waits.longWaitEnded.connect((_, end) => {
        reportEnd(end, goLabel, () => app.shell.activateById(document.id));
      });
      sharing.model.watchFrom(waits.kernel);
      return waits; // The signal of the document's disposal disposes of `waits`.
    };

    const onNotebook = (_: unknown, panel: NotebookPanel) =>
      addWaits(
        panel,
        new NotebookRunningCells(panel),
        trans.__('Go to Notebook')
      );
    notebooks.forEach(panel => onNotebook(null, panel));
    notebooks.widgetAdded.connect(onNotebook);
    const onConsole = (_: unknown, panel: ConsolePanel) =>
      addWaits(
        panel,
        new ConsoleRunningCells(panel),
        trans.__('Go to Console')
      );
    consoles?.forEach(panel => onConsole(null, panel));
    consoles?.widgetAdded.connect(onConsole);
  }
};

function reportEnd(
  { client, seconds }: LongWaitNotifier.IEnd,
  goLabel: string,
  go: () => void
): void {
  const parts = [displayName(client), formatDuration(seconds)];
  const text =
    client.phase === 'running'
      ? trans.__('%1 has the GPU now after a wait of %2.', ...parts)
      : trans.__('%1 has had a turn after a wait of %2.', ...parts);
  notify('info', text, NOTIFICATION_MS, [{ label: goLabel, callback: go }]);
}
