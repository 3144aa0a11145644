import type { IClient, IDevice, IStatus } from '../protocol';

type OfClient = Pick<
  IClient,
  'allocated' | 'resident' | 'resident_is_estimate' | 'resident_by_device'
>;
type OfDevice = Pick<IDevice, 'memory_used' | 'memory_used_is_estimate'>;

/**
 * Lets the memory in snapshots change only now and then. It does so all the
 * time and for everybody, where a turn or a place in a queue changes for a few:
 * drawn with each of those, it is most of what an update costs.
 */
export class MemoryPace {
  /** From the next snapshot on, what it says of memory counts. */
  look(): void {
    this._clients.clear();
    this._devices.clear();
  }

  /** A snapshot, its memory as at the last look; of who is new, as it is. */
  of(status: IStatus): IStatus {
    return {
      ...status,
      clients: status.clients.map(client => ({
        ...client,
        ...kept(this._clients, client.id, () => ofClient(client))
      })),
      devices: status.devices.map(device => ({
        ...device,
        ...kept(this._devices, device.uuid, () => ofDevice(device))
      }))
    };
  }

  private readonly _clients = new Map<string, OfClient>();
  private readonly _devices = new Map<string, OfDevice>();
}

function kept<T>(known: Map<string, T>, id: string, now: () => T): T {
  const value = known.get(id) ?? now();
  known.set(id, value);
  return value;
}

function ofClient(client: IClient): OfClient {
  const { allocated, resident, resident_is_estimate, resident_by_device } =
    client;
  return { allocated, resident, resident_is_estimate, resident_by_device };
}

function ofDevice({ memory_used, memory_used_is_estimate }: IDevice): OfDevice {
  return { memory_used, memory_used_is_estimate };
}
