import type { TranslationBundle } from '@jupyterlab/translation';

/** Texts that are kept; times and sizes make for some hundreds. */
const MOST = 2000;

/**
 * The same translations, each text made once: a panel of many clients says the
 * same few hundred sentences ten times a second, and putting values into them is
 * the better part of what an update costs.
 */
export function remembered(trans: TranslationBundle): TranslationBundle {
  const texts = new Map<string, string>();
  const remember = (kind: string, args: unknown[], make: () => string) => {
    const key = [kind, ...args].join('\u0000');
    let text = texts.get(key);
    if (text === undefined) {
      text = make();
      if (texts.size >= MOST) {
        texts.clear();
      }
      texts.set(key, text);
    }
    return text;
  };
  return Object.create(trans, {
    __: {
      value: (...args: Parameters<TranslationBundle['__']>) =>
        // eslint-disable-next-line jupyter/no-dynamic-translation
        remember('__', args, () => trans.__(...args))
    },
    _n: {
      value: (...args: Parameters<TranslationBundle['_n']>) =>
        // eslint-disable-next-line jupyter/no-dynamic-translation
        remember('_n', args, () => trans._n(...args))
    }
  }) as TranslationBundle;
}
