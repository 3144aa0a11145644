import { VDomRenderer } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { StatusItemModel } from '../model/statusitem';
import { StateButton } from './statebutton';

/** The status bar item: an icon and the headline, as a button. */
export class StatusItem extends VDomRenderer<StatusItemModel> {
  constructor(private readonly _options: StatusItem.IOptions) {
    super(_options.model);
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
      <StateButton
        className="gpushare-StatusItem-button"
        phase={model.phase}
        title={[model.text, ...lines].join('\n')}
        aria-label={[model.text, ...lines].join('. ')}
        onClick={this._options.onActivate}
        announcement={model.announcement}
      >
        <span className="gpushare-StatusItem-text">{model.text}</span>
      </StateButton>
    );
  }
}

export namespace StatusItem {
  export interface IOptions {
    model: StatusItemModel;
    trans: TranslationBundle;
    /** Called when the item is clicked, or activated by the keyboard. */
    onActivate: () => void;
  }
}
