/**
 * Ids of the commands of this extension, and the arguments of the commands.
 *
 * The palette, menus, shortcuts and views execute the commands. Each command of
 * {@link ACTIONS} takes `{ client: id }`. Without a client, such a command is
 * about the kernel of the current notebook or console. The command
 * `openDocument` needs a client.
 */
export namespace CommandIDs {
  /** Show the side panel, or bring the panel to the front. */
  export const openPanel = 'gpushare:open-panel';
  /** Ask for a new quota in a dialog, then set the quota. */
  export const changeQuota = 'gpushare:change-quota';
  /** End the turn and the hold. */
  export const release = 'gpushare:release';
  /**
   * Keep the devices between cells for `seconds`. Without `seconds`, a dialog
   * asks.
   */
  export const hold = 'gpushare:hold';
  export const suspend = 'gpushare:suspend';
  export const resume = 'gpushare:resume';
  /** Move the client's memory off the devices. */
  export const evict = 'gpushare:evict';
  /**
   * Change time quantum, policy and other settings of the coordinator, as an
   * admin.
   */
  export const changeSettings = 'gpushare:change-settings';
  /** Cancel the start of the `kernel`, which waits for a node with room. */
  export const cancelStart = 'gpushare:cancel-start';
  /** Open the notebook or console of a client. */
  export const openDocument = 'gpushare:open-document';
}

/** Commands about a client, in the order of menus. */
export const ACTIONS: ReadonlyArray<string> = [
  CommandIDs.changeQuota,
  CommandIDs.hold,
  CommandIDs.release,
  CommandIDs.suspend,
  CommandIDs.resume,
  CommandIDs.evict
];

/** Arguments of the commands about a client. */
export interface IClientArgs {
  readonly client?: string;
}
