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
 * Open the explanation above the status item. Escape, or a click elsewhere,
 * closes it and gives the focus back.
 */
export function showDetails(
  anchor: Widget,
  model: StatusItemModel,
  trans: TranslationBundle
): Popup {
  const body = new Details(model, trans);
  const popup = showPopup({
    body,
    anchor,
    align: 'right',
    hasDynamicSize: true
  });
  let hadFocus = false;
  body.node.addEventListener('focusin', () => (hadFocus = true));
  body.node.addEventListener('focusout', event => {
    hadFocus = event.relatedTarget === null;
  });
  popup.disposed.connect(() => {
    if (hadFocus) {
      anchor.node.querySelector('button')?.focus();
    }
  });
  body.node.focus();
  return popup;
}
