/** Commands of the actions on clients and on the settings. */

import {
  closeIcon,
  editIcon,
  fastForwardIcon,
  lockIcon,
  moveDownIcon,
  pauseIcon,
  runIcon,
  settingsIcon,
  type LabIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';

import { ACTIONS, CommandIDs, type IClientArgs } from '../base/commands';
import type { IClient } from '../base/protocol';
import { trans } from '../base/trans';
import type { IGpuSharing } from '../tokens';
import { Actions } from './actions';
import { findTarget, disabledReason, type Target } from './targets';

/** JSON schema of the arguments, for tools that offer commands. */
const ARGUMENTS = {
  type: 'object',
  properties: {
    client: {
      type: 'string',
      description:
        'Client id. Without an id, the command is about the current kernel.'
    }
  }
} as const;
const HOLD_ARGUMENTS = {
  type: 'object',
  properties: {
    ...ARGUMENTS.properties,
    seconds: {
      type: 'number',
      description:
        'Seconds to hold the GPU; 0 ends the hold. Without a number, a dialog asks.'
    }
  }
} as const;

/** Add the commands, and notify their views of changes. */
export function addCommands(
  commands: CommandRegistry,
  { api, current, model }: Pick<IGpuSharing, 'api' | 'current' | 'model'>
): void {
  const actions = new Actions(api);
  const target = (args: IClientArgs): Target =>
    findTarget(model, args.client, current.kernelId);
  const suspended = (args: IClientArgs) => {
    const found = target(args);
    return 'client' in found && found.client.suspended;
  };

  const add = (id: string, options: ICommand) => {
    const reason = (args: object) => disabledReason(id, target(args));
    commands.addCommand(id, {
      label: options.label,
      caption: args => reason(args) || options.caption,
      icon: options.icon,
      isEnabled: args => reason(args) === '',
      isVisible: options.isVisible,
      describedBy: { args: options.args ?? ARGUMENTS },
      execute: async args => {
        const found = target(args);
        // A caller may execute a command that is disabled.
        return 'client' in found && reason(args) === ''
          ? options.execute(found.client, args)
          : actions.refuse(reason(args));
      }
    });
  };

  add(CommandIDs.changeQuota, {
    label: trans.__('Change GPU Quota…'),
    caption: trans.__('Share, limit, memory and class of the kernel.'),
    icon: editIcon,
    execute: client => actions.changeQuota(client)
  });
  add(CommandIDs.hold, {
    label: trans.__('Hold the GPU…'),
    caption: trans.__('Keep the GPU between cells for some minutes.'),
    icon: lockIcon,
    args: HOLD_ARGUMENTS,
    execute: (client, { seconds }) =>
      actions.hold(client, seconds, model.status!.config)
  });
  add(CommandIDs.release, {
    label: trans.__('Give Up the GPU Turn'),
    caption: trans.__(
      'End the turn and the hold, so that the next client runs.'
    ),
    icon: fastForwardIcon,
    execute: client => actions.act(client, 'release')
  });
  add(CommandIDs.suspend, {
    label: trans.__('Suspend GPU Use'),
    caption: trans.__(
      'Cells wait and the memory moves off the GPU until you resume the kernel.'
    ),
    icon: pauseIcon,
    isVisible: args => !suspended(args),
    execute: client => actions.act(client, 'suspend')
  });
  add(CommandIDs.resume, {
    label: trans.__('Resume GPU Use'),
    caption: trans.__('Take turns again.'),
    icon: runIcon,
    isVisible: suspended,
    execute: client => actions.act(client, 'resume')
  });
  add(CommandIDs.evict, {
    label: trans.__('Move Memory off the GPU'),
    caption: trans.__(
      'The memory returns with the next turn. A present turn ends first.'
    ),
    icon: moveDownIcon,
    execute: client => actions.act(client, 'evict')
  });

  commands.addCommand(CommandIDs.cancelStart, {
    label: trans.__('Cancel the Start'),
    caption: trans.__('The kernel does not start.'),
    icon: closeIcon,
    describedBy: {
      args: { type: 'object', properties: { kernel: { type: 'string' } } }
    },
    execute: ({ kernel }) => actions.cancelStart(String(kernel))
  });

  const mayChangeSettings = () => model.status?.viewer.admin !== false;
  const isUnavailable = () =>
    model.unavailable !== null || !model.status?.config;
  commands.addCommand(CommandIDs.changeSettings, {
    label: trans.__('GPU Sharing Settings…'),
    caption: () =>
      isUnavailable()
        ? trans.__('The GPU sharing service is unavailable.')
        : trans.__(
            'Time quantum, policy and other settings for all users of the GPUs.'
          ),
    icon: settingsIcon,
    isEnabled: () => mayChangeSettings() && !isUnavailable(),
    isVisible: mayChangeSettings,
    describedBy: { args: { type: 'object', properties: {} } },
    execute: () => actions.changeSettings()
  });

  const all = [...ACTIONS, CommandIDs.changeSettings];
  const state = () =>
    all.map(id => `${commands.isEnabled(id)} ${commands.isVisible(id)}`).join();
  let last = state();
  const refresh = () => {
    const now = state();
    if (now !== last) {
      last = now;
      all.forEach(id => commands.notifyCommandChanged(id));
    }
  };
  model.changed.connect(refresh);
  current.changed.connect(refresh);
}

interface ICommand {
  label: string;
  caption: string;
  icon: LabIcon;
  args?: typeof ARGUMENTS;
  isVisible?: (args: IClientArgs) => boolean;
  execute: (
    client: IClient,
    args: { readonly seconds?: number }
  ) => Promise<boolean>;
}
