import { nullTranslator } from '@jupyterlab/translation';

import { parseFraction, parseSeconds, parseSize } from '../model/amounts';
import { FormModel } from '../model/form';
import { quotaFields } from '../model/quotaform';
import { holdField, settingsFields } from '../model/settingsform';
import { client, GIB } from './fakes';

const trans = nullTranslator.load('');

describe('amounts as people type them', () => {
  it.each([
    ['0.5', 0.5],
    ['.25', 0.25],
    ['50%', 0.5],
    ['12.5 %', 0.125],
    ['50', 50],
    ['-1', null],
    ['half', null],
    ['', null]
  ])('reads the fraction %p', (text, value) => {
    expect(parseFraction(text)).toBe(value);
  });

  it.each([
    ['8GiB', 8 * GIB],
    ['8 gib', 8 * GIB],
    ['8G', 8 * GIB],
    ['8GB', 8e9],
    ['1.5 KiB', 1536],
    ['1048576', 1048576],
    ['512b', 512],
    ['0.5', null],
    ['8 pounds', null],
    ['-8GiB', null],
    ['', null]
  ])('reads the size %p', (text, value) => {
    expect(parseSize(text)).toBe(value);
  });

  it.each([
    ['90', 90],
    ['0.5', 0.5],
    ['30s', 30],
    ['1.5 min', 90],
    ['1h', 3600],
    ['soon', null],
    ['-1', null]
  ])('reads the duration %p', (text, value) => {
    expect(parseSeconds(text)).toBe(value);
  });
});

describe('the form of a quota', () => {
  let sent: unknown[];
  let answer: () => Promise<void>;
  let form: FormModel;

  beforeEach(() => {
    sent = [];
    answer = async () => undefined;
    form = new FormModel(quotaFields(client(), trans), changes => {
      sent.push(changes);
      return answer();
    });
  });

  it('shows what is set', () => {
    expect(form.texts).toEqual({
      share: '50%',
      limit: '90%',
      memory: '8 GiB',
      resident: '',
      service: 'online'
    });
  });

  it('sends only what was changed', async () => {
    form.set('share', '25%');
    form.set('service', 'offline');
    expect(await form.submit()).toBe(true);
    expect(sent).toEqual([{ share: 0.25, service: 'offline' }]);
  });

  it('sends nothing if all reads as before', async () => {
    form.set('share', '25%');
    form.set('share', '50%');
    expect(await form.submit()).toBe(true);
    expect(sent).toEqual([]);
  });

  it('lifts a bound that was emptied', async () => {
    form.set('memory', '');
    await form.submit();
    expect(sent).toEqual([{ memory: null }]);
  });

  it.each(['0.5', '50%', ' .25 ', '1.0'])(
    'takes memory = %p for a part of the device, as %%gpushare does',
    async text => {
      form.set('memory', text);
      expect(await form.submit()).toBe(true);
      expect(sent).toEqual([{ memory: text.trim() }]);
    }
  );

  it.each([
    ['memory', '0.0', /above 0% and up to 100%/],
    ['memory', '150%', /above 0% and up to 100%/],
    ['memory', '1', /at least 3 GiB/],
    ['memory', '50 %', /no size/],
    ['resident', '0.5', /no size/],
    ['share', '120%', /0% to 90%/],
    ['share', 'half', /50%, 0\.5/],
    ['limit', '101%', /50% to 100%/],
    ['limit', '40%', /50% to 100%/],
    ['memory', '2GiB', /at least 3 GiB/],
    ['memory', '8 pounds', /no size/],
    ['resident', '0', /no size/]
  ])('says what is wrong with %s = %p', async (name, text, error) => {
    form.set(name, text);
    expect(form.errorOf(name)).toMatch(error);
    expect(await form.submit()).toBe(false);
    expect(sent).toEqual([]);
  });

  it('bounds the share by the limit that is typed, and shows it', () => {
    form.set('limit', '100%');
    form.set('share', '95%');
    expect(form.firstWrong).toBeNull();
    form.set('limit', '60%');
    expect(form.errorOf('share')).toMatch(/0% to 60%/);
    const share = form.fields.find(({ name }) => name === 'share')!;
    expect(share.hint(form.texts)).toMatch(/0% to 60%/);
  });

  it.each(['0', '0%', '150%', 'half', ''])(
    'bounds the share by no limit that cannot be: %p',
    text => {
      form.set('limit', text);
      form.set('share', '40%');
      expect(form.firstWrong).toBe('limit');
      const share = form.fields.find(({ name }) => name === 'share')!;
      expect(share.hint(form.texts)).toMatch(/0% to 100%, or 0 to 1\.$/);
    }
  );

  it('allows the bound that it shows, though that is rounded', () => {
    const odd = client({ allocated: 3.27 * GIB });
    const [, , memory] = quotaFields(odd, trans);
    expect(memory.hint({})).toMatch(/at least 3\.3 GiB/);
    expect(memory.read('3.3 GiB', {})).toHaveProperty('value');
    expect(memory.read('3.2 GiB', {})).toHaveProperty('error');
  });

  it('keeps what was typed and shows what the server says', async () => {
    form.set('share', '40%');
    answer = () => Promise.reject(new Error('share: 0.3 is left'));
    expect(await form.submit()).toBe(false);
    expect(form.refusal).toBe('share: 0.3 is left');
    expect(form.texts.share).toBe('40%');
    form.set('share', '30%');
    expect(form.refusal).toBe('');
    answer = async () => undefined;
    expect(await form.submit()).toBe(true);
    expect(sent).toEqual([{ share: 0.4 }, { share: 0.3 }]);
  });

  it('asks once while the answer is awaited', async () => {
    let answered = () => {};
    answer = () => new Promise<void>(resolve => (answered = resolve));
    form.set('share', '40%');
    const first = form.submit();
    expect(form.isBusy).toBe(true);
    expect(await form.submit()).toBe(false);
    answered();
    expect(await first).toBe(true);
    expect(sent).toHaveLength(1);
  });
});

describe('the form of the settings', () => {
  const fields = settingsFields(
    { time_quantum: 'auto', policy: 'own_idea', idle_release: 0.5 },
    trans
  );
  let sent: unknown[];
  let form: FormModel;

  beforeEach(() => {
    sent = [];
    form = new FormModel(fields, async changes => {
      sent.push(changes);
    });
  });

  it('sends seconds as a number, and auto as it is', async () => {
    form.set('time_quantum', '30s');
    form.set('idle_release', 'auto');
    expect(await form.submit()).toBe(true);
    expect(sent).toEqual([{ time_quantum: 30, idle_release: 'auto' }]);
  });

  it('names the range', () => {
    form.set('time_quantum', '0');
    expect(form.errorOf('time_quantum')).toMatch(/0\.001 to 86400/);
  });

  it('keeps a policy that this page does not know', () => {
    const policy = fields.find(({ name }) => name === 'policy')!;
    expect(policy.options!.map(({ text }) => text)).toContain('own_idea');
    expect(policy.options!.map(({ text }) => text)).toContain('fcfs');
    expect(form.texts.policy).toBe('own_idea');
  });
});

describe('the durations of a hold', () => {
  it.each([
    [600, false, ['60', '300', '600']],
    [200, false, ['60', '200']],
    [1800, true, ['0', '60', '300', '600', '1800']]
  ])('are bounded by %p seconds', (longest, holds, texts) => {
    const { options } = holdField(longest, holds, trans);
    expect(options!.map(({ text }) => text)).toEqual(texts);
  });
});
