import { client, device, GIB, grant } from './fakes';
import { GivenStatusItem } from './given';

describe('what the status item tells of a kernel', () => {
  let given: GivenStatusItem;

  beforeEach(() => {
    given = new GivenStatusItem();
  });

  afterEach(() => given.dispose());

  const lines = () =>
    given.model.details.map(({ label, value }) => `${label}: ${value}`);

  it('tells label, quota, memory, use and who runs', async () => {
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
      { label: 'secret.ipynb', tenant: 'bob', own: false },
      'a notebook of bob running'
    ],
    [{ id: 'mine' }, 'this kernel running']
  ])('names the runner %j as "%s"', async (changes, text) => {
    const runner = client({ id: 'theirs', ...changes });
    await given.clients(
      [client(), runner],
      [device({ grants: [grant({ client: runner.id })] })]
    );
    expect(lines()).toContain(`Test GPU: ${text}`);
    expect(lines().join()).not.toContain('secret');
  });

  it.each([
    [{ resident_is_estimate: false }, '1.5 GiB on the device'],
    [{ resident_is_estimate: true }, 'about 1.5 GiB on the device'],
    [
      { host_pinned: GIB, host_pageable: GIB / 2 },
      '1.5 GiB on the device, 1.5 GiB of the host'
    ]
  ])('tells what of the memory is where, %j', async (changes, text) => {
    await given.clients([client(changes)]);
    expect(lines()).toContain(`Memory: 3 GiB allocated, ${text}`);
  });

  it('tells what the coordinator lets its user know', async () => {
    const notes = ['not used for long: …', 'moved'];
    await given.clients([client({ notes, limit_text: 'at most 1 block/s' })]);
    expect(lines()).toContain('Limited: at most 1 block/s');
    expect(lines()).toContain('Note: not used for long: …');
    expect(lines()).toContain('Note: moved');
  });

  it('tells when nobody runs, and when nothing is bounded', async () => {
    const quota = {
      share: null,
      limit: null,
      memory: null,
      resident: null,
      service: null
    };
    await given.clients([client({ quota, allocated: 512 })]);
    expect(lines()).toContain('Quota: none');
    expect(lines()).toContain('Test GPU: nobody running');
    expect(lines()).toContain('Memory: 512 B allocated, 1.5 GiB on the device');
  });
});
