/** Texts in the user's language. */

import {
  nullTranslator,
  type ITranslator,
  type TranslationBundle
} from '@jupyterlab/translation';

/** Translation domain of the texts. */
const DOMAIN = 'jupyter_gpushare';

/** Texts in the user's language, after a call of {@link translate}. */
export let trans: TranslationBundle = nullTranslator.load(DOMAIN);

/** Load the texts from JupyterLab's translator. */
export function translate(translator: ITranslator): void {
  trans = translator.load(DOMAIN);
}
