import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { Session } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import { CommandIDs, type IClientArgs } from '../commands';
import { findSession } from '../model/kernels';
import type { IGpuSharing } from '../tokens';

/** The commands of JupyterLab and Notebook 7 that open what a session belongs to. */
const OPEN_NOTEBOOK = 'docmanager:open';
const OPEN_CONSOLE = 'console:open';

/** Add the command that goes to a client's notebook or console. */
export function addOpenDocument(
  app: JupyterFrontEnd,
  sharing: IGpuSharing,
  trackers: ReadonlyArray<INotebookTracker | IConsoleTracker>,
  trans: TranslationBundle
): void {
  app.commands.addCommand(CommandIDs.openDocument, {
    label: trans.__('Go to the Notebook or Console'),
    caption: trans.__('Go to the notebook or console that uses the GPU'),
    describedBy: {
      args: {
        type: 'object',
        properties: {
          client: {
            type: 'string',
            description: trans.__('The id of the client to go to')
          }
        },
        required: ['client']
      }
    },
    // Without a client there is nowhere to go: it is no entry of the palette.
    isVisible: args => Boolean((args as IClientArgs).client),
    execute: async args => {
      const { client = '' } = args as IClientArgs;
      const session = await sessionOf(app, sharing, client);
      if (session === null) {
        Notification.info(
          trans.__('No notebook or console of this server belongs to it.'),
          { autoClose: 5000 }
        );
        return;
      }
      const kernelId = session.kernel?.id;
      const widget = trackers
        .flatMap(tracker => all(tracker))
        .find(one => one.sessionContext.session?.kernel?.id === kernelId);
      if (widget) {
        app.shell.activateById(widget.id);
      } else if (session.type === 'console') {
        await app.commands.execute(OPEN_CONSOLE, { path: session.path });
      } else {
        await app.commands.execute(OPEN_NOTEBOOK, { path: session.path });
      }
    }
  });
}

async function sessionOf(
  { serviceManager }: JupyterFrontEnd,
  { api }: IGpuSharing,
  client: string
): Promise<Session.IModel | null> {
  const clientOf = (kernelId: string) =>
    api.clientOf(kernelId).catch(() => null);
  return findSession(client, [...serviceManager.sessions.running()], clientOf);
}

type Owner =
  | NonNullable<INotebookTracker['currentWidget']>
  | NonNullable<IConsoleTracker['currentWidget']>;

function all(tracker: INotebookTracker | IConsoleTracker): Owner[] {
  const widgets: Owner[] = [];
  tracker.forEach((widget: Owner) => widgets.push(widget));
  return widgets;
}
