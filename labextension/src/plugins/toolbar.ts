import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { ToolbarChip } from '../components/toolbarchip';
import { toolbarMenu } from '../components/actionmenu';
import { chipTexts, followState } from '../model/toolbarchip';
import { CurrentKernel } from '../model/current';
import { StatusItemModel } from '../model/statusitem';
import { IGpuSharing, TRANSLATION_DOMAIN } from '../tokens';

/** The toolbars' name for it, as in the settings schema. */
const ITEM = 'gpushare';

/** Shows in the toolbar of a shared notebook if it has the GPU. */
export const toolbarPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpushare:toolbar',
  description: 'Shows in a notebook toolbar whether the notebook has the GPU.',
  autoStart: true,
  requires: [IGpuSharing, IToolbarWidgetRegistry],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    sharing: IGpuSharing,
    toolbars: IToolbarWidgetRegistry,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ): void => {
    const trans = (translator ?? nullTranslator).load(TRANSLATION_DOMAIN);
    toolbars.addFactory<NotebookPanel>('Notebook', ITEM, panel => {
      const { sessionContext } = panel;
      const current = new CurrentKernel([], () => sessionContext);
      const model = new StatusItemModel({
        sharing: sharing.model,
        visibility: sharing.visibility,
        current,
        trans
      });
      const view = () =>
        current.kernelId ? sharing.model.view(current.kernelId) : null;
      const chip = new ToolbarChip({
        model,
        texts: chipTexts(trans),
        speaks: statusBar === null,
        onActivate: toolbarMenu(app.commands, () => {
          const now = view();
          return now?.kind === 'client' ? { client: now.client.id } : {};
        })
      });
      followState(model, isShown => chip.setHidden(!isShown));

      const apply = () => {
        model.isEnabled = sharing.settings.values.showToolbarChip;
      };
      sharing.settings.changed.connect(apply);
      chip.disposed.connect(() => {
        sharing.settings.changed.disconnect(apply);
        model.dispose();
        current.dispose();
      });
      apply();
      return chip;
    });
  }
};
