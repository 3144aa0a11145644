import { HTMLSelect, VDomRenderer } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { FormModel, IField } from '../model/form';

let forms = 0;

/** The body of a dialog: labelled fields, what is allowed, what is wrong. */
export class Form extends VDomRenderer {
  constructor(
    private readonly _form: FormModel,
    private readonly _busyText: string
  ) {
    super();
    this.addClass('gpushare-Form');
    this._id = `gpushare-form-${forms++}`;
    _form.changed.connect(this.update, this);
  }

  /** Move the focus to the first field with a mistake. */
  focusWrong(): void {
    const name = this._form.firstWrong;
    if (name !== null) {
      this.node.querySelector<HTMLElement>(`[name="${name}"]`)?.focus();
    }
  }

  dispose(): void {
    this._form.changed.disconnect(this.update, this);
    super.dispose();
  }

  protected render(): React.ReactElement {
    return (
      <>
        {this._form.intro && (
          <p className="gpushare-Form-intro">{this._form.intro}</p>
        )}
        {this._form.fields.map(field => this._renderField(field))}
        <div role="alert" className="gpushare-Form-refusal">
          {this._form.refusal}
        </div>
        <div role="status" className="gpushare-Form-busy">
          {this._form.isBusy ? this._busyText : ''}
        </div>
      </>
    );
  }

  private _renderField(field: IField): React.ReactElement {
    const { name, label, options } = field;
    const id = `${this._id}-${name}`;
    const error = this._form.errorOf(name);
    const hint = field.hint(this._form.texts);
    const described = {
      name,
      value: this._form.texts[name],
      'aria-describedby': `${id}-hint ${id}-error`,
      onChange: (event: { target: { value: string } }) =>
        this._form.set(name, event.target.value)
    };
    const hints = (
      <>
        <div id={`${id}-hint`} className="gpushare-Form-hint">
          {hint}
        </div>
        <div
          id={`${id}-error`}
          className="gpushare-Form-error"
          aria-live="polite"
        >
          {error}
        </div>
      </>
    );
    return (
      <div key={name} className="gpushare-Form-field">
        <label htmlFor={id}>{label}</label>
        {options ? (
          <HTMLSelect id={id} className="jp-mod-styled" {...described}>
            {options.map(option => (
              <option key={option.text} value={option.text}>
                {option.label}
              </option>
            ))}
          </HTMLSelect>
        ) : (
          <input
            id={id}
            type="text"
            className="jp-mod-styled"
            placeholder={field.placeholder}
            autoComplete="off"
            spellCheck={false}
            aria-invalid={error !== ''}
            {...described}
          />
        )}
        {hints}
      </div>
    );
  }

  private readonly _id: string;
}
