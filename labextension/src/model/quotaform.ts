import type { TranslationBundle } from '@jupyterlab/translation';

import type { IClient } from '../protocol';
import {
  formatFraction,
  isFraction,
  parseFraction,
  parseSize
} from './amounts';
import type { IField, Reading, Texts } from './form';
import { formatBytes } from './format';

/** A client is never kept from running altogether. */
const LEAST_LIMIT = 0.001;

/** The fields of a client's quota, with what is allowed now. */
export function quotaFields(
  client: IClient,
  trans: TranslationBundle
): IField[] {
  return [
    shareField(client, trans),
    limitField(client, trans),
    memoryField(client, trans),
    residentField(client, trans),
    classField(client, trans)
  ];
}

function shareField({ quota }: IClient, trans: TranslationBundle): IField {
  const hint = (texts: Texts) =>
    trans.__(
      'Part of the time that is guaranteed under the policy “fair”: 0% to %1, or 0 to %2.',
      ...bothWays(highest(texts))
    );
  return {
    name: 'share',
    label: trans.__('Share'),
    initial: formatFraction(quota.share ?? 0),
    hint,
    read: (text, texts) => {
      const value = parseFraction(text);
      if (value === null) {
        return notFraction(trans);
      }
      return value <= highest(texts)
        ? { value }
        : {
            error: trans.__(
              'Allowed is 0% to %1, the limit.',
              formatFraction(highest(texts))
            )
          };
    }
  };
}

function limitField({ quota }: IClient, trans: TranslationBundle): IField {
  return {
    name: 'limit',
    label: trans.__('Limit'),
    initial: formatFraction(quota.limit ?? 1),
    hint: texts =>
      trans.__(
        'The most of the time that it may take: %1 to 100%, or %2 to 1.',
        ...bothWays(lowest(texts))
      ),
    read: (text, texts) => {
      const value = parseFraction(text);
      if (value === null) {
        return notFraction(trans);
      }
      return value >= lowest(texts) && value <= 1
        ? { value }
        : {
            error: trans.__(
              'Allowed is %1 to 100%.',
              formatFraction(lowest(texts))
            )
          };
    }
  };
}

function memoryField(client: IClient, trans: TranslationBundle): IField {
  const { allocated, quota } = client;
  const range =
    allocated > 0
      ? trans.__('at least %1, which it has allocated', roundedUp(allocated))
      : trans.__(
          'any size, such as 8GiB, or a part of the device, such as 50%'
        );
  return {
    name: 'memory',
    label: trans.__('Memory'),
    initial: quota.memory === null ? '' : formatBytes(quota.memory),
    placeholder: trans.__('no bound of its own'),
    hint: () =>
      trans.__('What it may allocate: %1. Empty: no bound of its own.', range),
    read: text => {
      if (isFraction(text)) {
        return readPart(text, trans);
      }
      const reading = readSize(text, trans);
      return 'value' in reading &&
        reading.value !== null &&
        reading.value < allocated
        ? { error: trans.__('Allowed is %1.', range) }
        : reading;
    }
  };
}

function residentField({ quota }: IClient, trans: TranslationBundle): IField {
  return {
    name: 'resident',
    label: trans.__('Resident'),
    initial: quota.resident === null ? '' : formatBytes(quota.resident),
    placeholder: trans.__('no bound of its own'),
    hint: () =>
      trans.__(
        'What may stay on the GPU while others wait: any size, such as 2GiB. Empty: no bound of its own.'
      ),
    read: text => readSize(text, trans)
  };
}

function classField({ quota }: IClient, trans: TranslationBundle): IField {
  return {
    name: 'service',
    label: trans.__('Class'),
    initial: quota.service ?? 'online',
    options: [
      { text: 'online', label: trans.__('online: before offline ones') },
      { text: 'offline', label: trans.__('offline: when no other wants it') }
    ],
    hint: () => '',
    read: text => ({ value: text })
  };
}

function readSize(
  text: string,
  trans: TranslationBundle
): { readonly value: number | null } | { readonly error: string } {
  if (text.trim() === '') {
    return { value: null };
  }
  const value = parseSize(text);
  return value
    ? { value }
    : {
        error: trans.__(
          'That is no size. Allowed are 8GiB, 512MiB, 1.5GB, …; or nothing.'
        )
      };
}

/** A part of the device, as it is typed: the coordinator knows how much that is. */
function readPart(text: string, trans: TranslationBundle): Reading {
  const part = parseFraction(text);
  return part && part <= 1
    ? { value: text.trim() }
    : {
        error: trans.__(
          'Allowed is a part of the device above 0% and up to 100%, or a size.'
        )
      };
}

function notFraction(trans: TranslationBundle): { readonly error: string } {
  return {
    error: trans.__('That is no part of the time. Allowed are 50%, 0.5, ….')
  };
}

/** What bounds a share: the limit, as it is typed, if it can be one. */
function highest(texts: Texts): number {
  const limit = parseFraction(texts.limit) ?? 1;
  return limit < LEAST_LIMIT ? 1 : Math.min(1, limit);
}

/** What bounds a limit: the share, as it is typed. */
function lowest(texts: Texts): number {
  const share = parseFraction(texts.share) ?? 0;
  return share > 1 ? LEAST_LIMIT : Math.max(LEAST_LIMIT, share);
}

function bothWays(fraction: number): [string, string] {
  return [formatFraction(fraction), String(Number(fraction.toFixed(4)))];
}

/** As short as {@link formatBytes}, but never less: what is shown is allowed. */
function roundedUp(bytes: number): string {
  const text = formatBytes(bytes);
  const [amount, unit] = text.split(' ');
  return (parseSize(text) ?? bytes) < bytes
    ? `${(Number(amount) + 0.1).toFixed(1)} ${unit}`
    : text;
}
