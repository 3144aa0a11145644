import type { IClient, IDevice } from '../protocol';

/** Who has a turn. */
export interface IRunner {
  /** Undefined if the snapshot does not tell. */
  readonly client: IClient | undefined;
  /** Seconds until the turn ends; null without a deadline. */
  readonly secondsLeft: number | null;
  /** Whether it keeps the device by a hold and runs nothing. */
  readonly isHeld: boolean;
}

/** Seconds that are left `age` seconds later; null stays null. */
export function countDown(seconds: number | null, age: number): number | null {
  return seconds === null ? null : Math.max(0, seconds - age);
}

/** The earliest deadline among the client's grants. */
export function secondsLeft(
  client: IClient,
  devices: ReadonlyArray<IDevice>
): number | null {
  const deadlines = devices
    .flatMap(device => device.grants)
    .filter(grant => grant.client === client.id)
    .map(grant => grant.seconds_left)
    .filter((seconds): seconds is number => seconds !== null);
  return deadlines.length > 0 ? Math.min(...deadlines) : null;
}

/** Each of the others once, though it may have several of the devices. */
export function others(
  { id }: IClient,
  devices: ReadonlyArray<IDevice>,
  clients: ReadonlyArray<IClient>,
  age: number
): IRunner[] {
  const grants = devices
    .flatMap(device => device.grants)
    .filter(grant => grant.client !== id);
  const latest = new Map(grants.map(grant => [grant.client, grant]));
  return [...latest.values()].map(({ client, seconds_left, held }) => ({
    client: clients.find(({ id }) => id === client),
    secondsLeft: countDown(seconds_left, age),
    isHeld: held
  }));
}
