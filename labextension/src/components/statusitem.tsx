import { VDomRenderer } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { gpuIcon } from '../icons';
import type { StatusItemModel } from '../model/statusitem';

/** The status bar item: an icon and the headline, as a button. */
export class StatusItem extends VDomRenderer<StatusItemModel> {
  constructor(options: StatusItem.IOptions) {
    super(options.model);
    this._options = options;
    this.addClass('gpushare-StatusItem');
  }

  protected render(): React.ReactElement | null {
    const model = this.model;
    if (!model) {
      return null;
    }
    const lines = model.details.map(({ label, value }) =>
      this._options.trans.__('%1: %2', label, value)
    );
    return (
      <>
        <button
          type="button"
          className="gpushare-StatusItem-button"
          data-phase={model.phase}
          title={[model.text, ...lines].join('\n')}
          aria-label={[model.text, ...lines].join('. ')}
          aria-haspopup={this._options.hasPopup() ? 'dialog' : undefined}
          onClick={() => this._options.onActivate(this)}
        >
          <gpuIcon.react tag="span" className="gpushare-StatusItem-icon" />
          <span className="gpushare-StatusItem-text">{model.text}</span>
        </button>
        <span
          className="gpushare-mod-visuallyHidden"
          role="status"
          aria-live="polite"
        >
          {model.announcement}
        </span>
      </>
    );
  }

  private readonly _options: StatusItem.IOptions;
}

export namespace StatusItem {
  export interface IOptions {
    model: StatusItemModel;
    trans: TranslationBundle;
    /** Whether it opens a popup, instead of going to the panel. */
    hasPopup: () => boolean;
    /** Called when the item is clicked, or activated by the keyboard. */
    onActivate: (item: StatusItem) => void;
  }
}
