/**
 * The commands, for the palette, menus, shortcuts and our own views.
 *
 * Those about a client take `{ client: id }`; without it they are about the
 * kernel of the current notebook or console.
 */
export namespace CommandIDs {
  /** Show the side panel, or bring it to the front. */
  export const openPanel = 'gpushare:open-panel';
  /** Ask for a new quota in a dialog, and set it. */
  export const changeQuota = 'gpushare:change-quota';
  /** Give up the rest of the turn. */
  export const release = 'gpushare:release';
  /** Keep the devices between cells; `seconds` as well, or a dialog asks. */
  export const hold = 'gpushare:hold';
  export const suspend = 'gpushare:suspend';
  export const resume = 'gpushare:resume';
  /** Move the memory off the devices. */
  export const evict = 'gpushare:evict';
  /** For admins: quantum, policy and other settings of the coordinator. */
  export const changeSettings = 'gpushare:change-settings';
  /** Go to the notebook or console of a client. */
  export const openDocument = 'gpushare:open-document';
}

/** The commands about a client, in the order of menus. */
export const ACTIONS: ReadonlyArray<string> = [
  CommandIDs.changeQuota,
  CommandIDs.hold,
  CommandIDs.release,
  CommandIDs.suspend,
  CommandIDs.resume,
  CommandIDs.evict
];

/** The arguments of the commands about a client. */
export interface IClientArgs {
  readonly client?: string;
}
