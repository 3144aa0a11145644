import { showPopup, type Popup } from '@jupyterlab/statusbar';
import type { TranslationBundle } from '@jupyterlab/translation';
import { VDomRenderer } from '@jupyterlab/ui-components';
import type { Widget } from '@lumino/widgets';
import * as React from 'react';

import type { StatusItemModel } from '../model/statusitem';

/** The explanation of the status item, kept up to date while it is open. */
export class Details extends VDomRenderer<StatusItemModel> {
  constructor(model: StatusItemModel, trans: TranslationBundle) {
    super(model);
    this.addClass('gpushare-Details');
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'dialog');
    this.node.setAttribute('aria-label', trans.__('GPU sharing'));
  }

  protected render(): React.ReactElement | null {
    const model = this.model;
    if (!model) {
      return null;
    }
    return (
      <>
        <h3 className="gpushare-Details-title">{model.text}</h3>
        <dl className="gpushare-Details-list">
          {model.details.map(({ label, value }, index) => (
            <div key={index}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </>
    );
  }
}

/**
 * Makes the action of the status item: open the explanation above it, or close
 * it again. Escape, or a click elsewhere, closes it too. The focus comes back.
 */
export function detailsToggle(
  model: StatusItemModel,
  trans: TranslationBundle
): (anchor: Widget) => void {
  let popup: Popup | null = null;
  return anchor => {
    if (popup) {
      popup.dispose();
      return;
    }
    const body = new Details(model, trans);
    popup = showPopup({ body, anchor, align: 'left', hasDynamicSize: true });
    popup.disposed.connect(() => {
      popup = null;
      // Whoever closed it by clicking elsewhere has moved the focus there.
      if (body.node.contains(document.activeElement)) {
        anchor.node.querySelector('button')?.focus();
      }
    });
    body.node.focus();
  };
}
