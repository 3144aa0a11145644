/** Command that opens the notebook or console of a client. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { INotebookTracker } from '@jupyterlab/notebook';

import { CommandIDs, type IClientArgs } from '../base/commands';
import { notify } from '../base/notify';
import { trans } from '../base/trans';
import { findSession } from '../server/kernelClients';
import type { IGpuSharing } from '../tokens';

/**
 * Commands of JupyterLab and Notebook 7 that open the document of a session.
 */
const OPEN_NOTEBOOK = 'docmanager:open';
const OPEN_CONSOLE = 'console:open';

const NOTIFICATION_MS = 5000;

/** Add the command that opens a client's notebook or console. */
export function addOpenDocument(
  app: JupyterFrontEnd,
  sharing: IGpuSharing,
  trackers: ReadonlyArray<INotebookTracker | IConsoleTracker>
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
    // The command needs a client, so the palette must not show the command.
    isVisible: args => Boolean((args as IClientArgs).client),
    execute: async args => {
      const { client = '' } = args as IClientArgs;
      const session = await findSession(
        client,
        [...app.serviceManager.sessions.running()],
        kernelId =>
          sharing.api.kernel(kernelId).then(
            kernel => kernel?.client ?? null,
            () => null
          )
      );
      if (session === null) {
        notify(
          'info',
          trans.__(
            'No notebook or console of this server belongs to the client.'
          ),
          NOTIFICATION_MS
        );
        return;
      }
      const kernelId = session.kernel?.id;
      const widget = trackers
        .map(tracker => tracker.find(isOf(kernelId)))
        .find(found => found !== undefined);
      if (widget) {
        app.shell.activateById(widget.id);
      } else {
        const open = session.type === 'console' ? OPEN_CONSOLE : OPEN_NOTEBOOK;
        await app.commands.execute(open, { path: session.path });
      }
    }
  });
}

function isOf(kernelId: string | undefined) {
  return ({ sessionContext }: { sessionContext: ISessionContext }) =>
    sessionContext.session?.kernel?.id === kernelId;
}
