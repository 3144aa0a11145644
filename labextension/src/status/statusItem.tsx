/** Item of the status bar with the state of the current kernel. */

import { VDomRenderer } from '@jupyterlab/ui-components';
import * as React from 'react';

import { trans } from '../base/trans';
import { StateButton } from './stateButton';
import type { StatusItemModel } from './statusItemModel';

/** Item of the status bar: a button with an icon and the headline. */
export class StatusItem extends VDomRenderer<StatusItemModel> {
  /** @param _onActivate - function for a click or a key press */
  constructor(
    model: StatusItemModel,
    private readonly _onActivate: () => void
  ) {
    super(model);
    this.addClass('gpushare-StatusItem');
  }

  protected render(): React.ReactElement | null {
    const model = this.model;
    if (!model) {
      return null;
    }
    const lines = model.details.map(({ label, value }) =>
      trans.__('%1: %2', label, value)
    );
    return (
      <StateButton
        className="gpushare-StatusItem-button"
        phase={model.phase}
        title={[model.text, ...lines].join('\n')}
        aria-label={[model.text, ...lines].join('. ')}
        onClick={this._onActivate}
        announcement={model.announcement}
      >
        <span className="gpushare-StatusItem-text">{model.text}</span>
      </StateButton>
    );
  }
}
