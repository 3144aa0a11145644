/**
 * Tests of the panel's texts without rendering: client rows, labels, foreign
 * processes, device memory, and the session of a client.
 */

import type { Session } from '@jupyterlab/services';

import { CommandIDs } from '../base/commands';
import type { IClient } from '../base/protocol';
import { findSession } from '../server/kernelClients';
import { ClientLabels } from '../sharing/clientLabels';
import { client, device, GIB, grant } from '../testing/fakes';
import { clientRowView } from './clientRowView';
import { processesText } from './deviceView';
import { memoryView } from './memorySegments';

function row(changes: Partial<IClient>, age = 0, left: number | null = 20) {
  const one = client(changes);
  const names = new ClientLabels();
  names.update([one], new Map());
  const grants = [grant({ seconds_left: left })];
  return clientRowView(one, names.get(one.id)!, [device({ grants })], age);
}

describe('a row of the list of clients', () => {
  const waiting = { phase: 'waiting', queue_position: 2, expected_wait: 10 };

  it.each<[string, Partial<IClient>, number, number | null]>([
    ['Running · for 8 s · up to 15 s left', { phase: 'running' }, 5, 20],
    ['#2 in queue · about 6 s', waiting, 4, null],
    ['#2 in queue', waiting, 11, null],
    ['Idle · held for 50 s', { hold_seconds_left: 60 }, 10, null],
    ['Held · 1 min left', { state: 'held', hold_seconds_left: 60 }, 0, null],
    ['Idle', { idle_seconds: 59 }, 0, null],
    ['Idle · unused for 1 min', { idle_seconds: 59 }, 1, null],
    ['Idle · unused for 2 h 31 min', { idle_seconds: 9100 }, 0, null],
    [
      'Idle · unused for 11 min · memory moves off in 4 min',
      { idle_seconds: 600, idle_warned: true, evicted_in: 300 },
      60,
      null
    ],
    [
      'Idle · memory moves off in 5 min',
      { idle_warned: true, evicted_in: 300, suspended_in: 900 },
      0,
      null
    ],
    [
      'Idle · suspended in 1 min 20 s',
      { idle_warned: true, evicted_in: 90, suspended_in: 80 },
      0,
      null
    ],
    ['Idle', { idle_warned: true }, 0, null],
    ['Idle', { evicted_in: 3000 }, 0, null],
    ['New · as sent', { state: 'new', state_text: 'new · as sent' }, 0, null]
  ])('reads "%s" for %j after %p s', (text, changes, age, left) => {
    expect(row(changes, age, left).state).toBe(text);
  });

  it('has only the bounds of the quota that differ from the defaults', () => {
    const quota = {
      share: 0,
      limit: 1,
      memory: null,
      resident: null,
      service: 'online'
    };
    expect(row({ quota }).quota).toBe('');
    expect(row({ quota: { ...quota, service: 'offline' } }).quota).toBe(
      'offline'
    );
  });

  it('has the progress, and the part that is done if the total is known', () => {
    const shown = (done: number, total: number | null) =>
      row({ progress: { done, total }, progress_text: 'as sent' });
    expect(shown(3, 4)).toMatchObject({
      progress: 'as sent',
      fractionDone: 0.75
    });
    expect(shown(3, null).fractionDone).toBeNull();
    expect(row({})).toMatchObject({ progress: '', fractionDone: null });
  });

  it('has a document to open, except for programs and other users’ clients', () => {
    expect(row({}).canOpen).toBe(true);
    expect(row({ id: 'run:job@host' }).canOpen).toBe(false);
    expect(row({ own: false, label: '' }).canOpen).toBe(false);
  });

  it('offers the actions that apply to its state', () => {
    const offered = (changes: Partial<IClient>) => row(changes).actions;
    expect(offered({ phase: 'running' })).toContain(CommandIDs.release);
    expect(offered({})).not.toContain(CommandIDs.release);
    expect(offered({ hold_seconds_left: 9 })).toContain(CommandIDs.release);
    expect(offered({ resident: 0 })).not.toContain(CommandIDs.evict);
    expect(offered({ suspended: true, resident: 0 })).toEqual([
      CommandIDs.changeQuota,
      CommandIDs.resume
    ]);
    expect(offered({ may_change: false })).toEqual([]);
  });
});

describe('ClientLabels', () => {
  it('number own clients first, and keep numbers while the timeline needs them', () => {
    const names = new ClientLabels();
    const theirs = client({ id: 'theirs', own: false, label: '' });
    const mine = client({ own: true });
    names.update([theirs, mine], new Map());
    expect(names.get('mine')!.number).toBe(1);
    expect(names.get('theirs')!.number).toBe(2);
    names.update([theirs], new Map([['mine', {}]]));
    expect(names.get('mine')!.name).toBe('train.ipynb');
    names.update([theirs], new Map());
    expect(names.get('mine')).toBeUndefined();
    names.update([theirs, client({ id: 'next', own: true })], new Map());
    expect(names.get('next')!.number).toBe(1);
  });
});

describe('the text about foreign processes', () => {
  const one = (user: string | null, memory: number | null = GIB) => ({
    user,
    memory
  });

  it.each([
    [[], ''],
    [[one('ada')], '1 process · 1 GiB · of ada'],
    [[one(null)], '1 process · 1 GiB'],
    [[one('bob'), one('ada')], '2 processes · 2 GiB · of ada, bob'],
    [[one('ada'), one(null)], '2 processes · 2 GiB · of ada and others'],
    [[one('ada'), one('ada', null)], '2 processes · at least 1 GiB · of ada'],
    [[one(null, null), one(null, null)], '2 processes']
  ])(
    'has the number, memory and users of the processes %j',
    (processes, text) => {
      expect(processesText(processes)).toBe(text);
    }
  );
});

describe('the memory of a device', () => {
  it('has memory without a client as other use', () => {
    const view = memoryView(
      device({ memory_used: 4 * GIB }),
      [client()],
      () => undefined
    );
    expect(view.resident.map(({ bytes }) => bytes / GIB)).toEqual([1.5, 2.5]);
    expect(view.free / GIB).toBe(12);
    expect(view.evicted.map(({ bytes }) => bytes / GIB)).toEqual([1.5]);
  });

  it('has the bytes of each device for a client on several devices', () => {
    const two = client({
      devices: ['GPU-1', 'GPU-2'],
      resident_by_device: { 'GPU-1': GIB, 'GPU-2': 0.5 * GIB }
    });
    const view = memoryView(
      device({ memory_used: GIB }),
      [two],
      () => undefined
    );
    expect(view.resident.map(({ bytes }) => bytes / GIB)).toEqual([1]);
    expect(view.evicted.map(({ bytes }) => bytes / GIB)).toEqual([0.75]);
  });

  it('has unmade memory neither on the device nor as moved out', () => {
    const view = (unmade: number) =>
      memoryView(device(), [client({ unmade })], () => undefined);
    expect(view(GIB).evicted.map(({ bytes }) => bytes / GIB)).toEqual([0.5]);
    expect(view(GIB).text).toContain('512 MiB moved out');
    expect(row({ unmade: GIB }).memory).toBe('3 GiB, 512 MiB moved out');
    expect(row({ unmade: 1.5 * GIB }).memory).toBe('3 GiB');
    expect(view(1.5 * GIB).evicted).toEqual([]);
    expect(view(1.5 * GIB).text).not.toContain('moved out');
  });
});

describe('the session of a client', () => {
  const session = (id: string) => ({ id, kernel: { id } }) as Session.IModel;

  it('belongs to the kernel with the client’s id, or to the kernel that the server names', async () => {
    const sessions = [session('a'), session('b')];
    const asked: string[] = [];
    const clientOf = async (id: string) => {
      asked.push(id);
      return id === 'b' ? 'launched' : null;
    };
    expect(await findSession('a', sessions, clientOf)).toBe(sessions[0]);
    expect(asked).toEqual([]);
    expect(await findSession('launched', sessions, clientOf)).toBe(sessions[1]);
    expect(await findSession('run:x', sessions, clientOf)).toBeNull();
  });
});
