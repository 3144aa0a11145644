/** Tests of the lines in which the status item explains the state of its client. */

import type { IClient } from '../base/protocol';
import { client, device, GIB, grant } from '../testing/fakes';
import { Given } from '../testing/given';
import { StatusItemModel } from './statusItemModel';

const time = (since: number) => new Date(since * 1000).toLocaleTimeString();

describe('the explanation of the status item', () => {
  let given: Given;
  let model: StatusItemModel;

  beforeEach(() => {
    given = new Given();
    model = given.own(new StatusItemModel(given));
  });

  afterEach(() => {
    given.dispose();
  });

  const lines = () =>
    model.details.map(({ label, value }) => `${label}: ${value}`);

  it('has label, quota, memory, use and the running clients', async () => {
    await given.clients(
      [
        client({ phase: 'waiting', queue_position: 1 }),
        client({ id: 'theirs', label: 'eval.ipynb' })
      ],
      [device({ simulated: true, grants: [grant({ client: 'theirs' })] })]
    );
    expect(lines()).toEqual([
      'Label: train.ipynb',
      'Quota: share 50 %, limit 90 %, memory 8 GiB, online',
      'Memory: 3 GiB allocated, 1.5 GiB on the device',
      'So far: 12 s on the GPU, 30 s waiting',
      'Test GPU (simulated): eval.ipynb running'
    ]);
  });

  it.each([
    [
      { id: 'theirs', label: 'secret.ipynb', user: 'bob', own: false },
      false,
      'a notebook of bob running'
    ],
    [{ id: 'mine' }, false, 'this kernel running'],
    [{ id: 'mine', state: 'held' }, true, 'held by this kernel']
  ])(
    'names the running client %j, held: %p, as "%s"',
    async (runner, held, text) => {
      await given.clients(
        [client(), client(runner)],
        [device({ grants: [grant({ client: runner.id, held })] })]
      );
      expect(lines()).toContain(`Test GPU: ${text}`);
      expect(lines().join()).not.toContain('secret');
    }
  );

  const unbounded = {
    share: null,
    limit: null,
    memory: null,
    resident: null,
    service: null
  };

  it.each<[string, Partial<IClient>]>([
    [
      'Memory: 3 GiB allocated, about 1.5 GiB on the device',
      { resident_is_estimate: true }
    ],
    [
      'Memory: 3 GiB allocated, 1.5 GiB on the device, 1.5 GiB on the host',
      { host_pinned: GIB, host_pageable: GIB / 2 }
    ],
    ['Memory: 512 B allocated, 1.5 GiB on the device', { allocated: 512 }],
    [
      'Memory: 3 GiB allocated, 1.5 GiB on the device, 512 MiB more for contexts and code',
      { context_memory: GIB / 2 }
    ],
    ['Held: for 30 s', { hold_seconds_left: 30 }],
    ['Progress: 3 of 10', { progress_text: '3 of 10' }],
    ['Limited: at most 1 block/s', { limit_text: 'at most 1 block/s' }],
    [
      `Limited: a; b, since ${time(7)}; c, since ${time(5)}`,
      {
        limit_text: 'a; b; c',
        limits: [
          { since: 7, text: 'a; b' },
          { since: 5, text: 'c' }
        ]
      }
    ],
    [
      'Limited: of an earlier version',
      { limit_text: 'of an earlier version', limits: [{ since: 7 }] }
    ],
    ['Note: not used for long: …', { notes: ['not used for long: …'] }],
    ['Note: moved', { notes: ['not used for long: …', 'moved'] }],
    ['Quota: none', { quota: unbounded }],
    ['Test GPU: no client running', {}]
  ])('has the line "%s" of %j', async (line, mine) => {
    await given.clients([client(mine)]);
    expect(lines()).toContain(line);
  });
});
