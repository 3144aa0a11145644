import {
  nullTranslator,
  type ITranslator,
  type TranslationBundle
} from '@jupyterlab/translation';

/** The name under which the texts are translated. */
const DOMAIN = 'jupyter_gpushare';

/** The texts in the user's language, once {@link translate} was called. */
export let trans: TranslationBundle = nullTranslator.load(DOMAIN);

/** Take the texts from JupyterLab's translator. */
export function translate(translator: ITranslator): void {
  trans = translator.load(DOMAIN);
}
