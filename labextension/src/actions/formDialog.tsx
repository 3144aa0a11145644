/**
 * Dialog with a form of a JSON schema, which stays open until the server
 * accepts the values or the user cancels.
 */

import { Dialog } from '@jupyterlab/apputils';
import { FormComponent, VDomRenderer } from '@jupyterlab/ui-components';
import type { ReadonlyJSONObject } from '@lumino/coreutils';
import type {
  FieldProps,
  FieldTemplateProps,
  RJSFValidationError
} from '@rjsf/utils';
import { customizeValidator } from '@rjsf/validator-ajv8';
import * as React from 'react';

import type { IFormSchema } from '../base/protocol';
import { trans } from '../base/trans';
import { readAmount, writeAmount } from '../base/units';

const ID = 'gpushare-Form';
const validator = customizeValidator<ReadonlyJSONObject>();

/**
 * A dialog that keeps the user's input until the server has accepted the input
 * or the user cancels.
 */
export class FormDialog extends Dialog<null> {
  constructor(options: FormDialog.IOptions) {
    const form = new Form(options);
    super({
      title: options.title,
      body: form,
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.okButton({ label: trans.__('Apply') })
      ],
      focusNodeSelector: 'input, select'
    });
    this.addClass('gpushare-FormDialog');
    this._form = form;
  }

  /** Open the dialog. Resolve with whether the server has accepted values. */
  async ask(): Promise<boolean> {
    return (await this.launch()).button.accept;
  }

  resolve(index?: number): void {
    if (index === 0) {
      super.resolve(index);
    } else {
      void this._submit();
    }
  }

  // The button stays enabled, so that a click moves the focus to the first
  // invalid field.
  protected _checkValidation(): void {}

  private async _submit(): Promise<void> {
    const button = this.node.querySelector('.jp-mod-accept');
    button?.setAttribute('aria-disabled', 'true');
    if (await this._form.submit()) {
      super.resolve(1);
    } else {
      button?.setAttribute('aria-disabled', 'false');
    }
  }

  private readonly _form: Form;
}

export namespace FormDialog {
  export interface IOptions {
    title: string;
    /** Text above the form. */
    intro?: string;
    schema: IFormSchema;
    /** Initial values. */
    values: ReadonlyJSONObject;
    /** Values in force. A field with an equal value is not sent. */
    present?: ReadonlyJSONObject;
    /** Function that sends the changes. Rejects with the server's refusal. */
    send: (changes: ReadonlyJSONObject) => Promise<void>;
  }
}

/** Body of the dialog. */
class Form extends VDomRenderer {
  constructor(private readonly _options: FormDialog.IOptions) {
    super();
    this.addClass(ID);
    this._values = _options.values;
    this._present = _options.present ?? _options.values;
  }

  /** Send the changes. Resolve with whether the dialog may close. */
  async submit(): Promise<boolean> {
    const { schema, send } = this._options;
    const [wrong] = validator.validateFormData(
      this._values,
      schema,
      undefined,
      this._transformErrors
    ).errors;
    if (this._isBusy || wrong) {
      this._focus(fieldOf(wrong));
      return false;
    }
    const changes = Object.fromEntries(
      Object.entries(this._values).filter(([name]) => this._isChanged(name))
    );
    if (Object.keys(changes).length === 0) {
      return true;
    }
    this._isBusy = true;
    this._refusal = '';
    this.update();
    try {
      await send(changes);
      return true;
    } catch (error) {
      this._refusal = (error as Error).message;
      this._focus(this._refused);
      return false;
    } finally {
      this._isBusy = false;
      this.update();
    }
  }

  protected render(): React.ReactElement {
    const { intro, schema } = this._options;
    const fields = Object.entries(schema.properties);
    const refused = this._refused;
    return (
      <>
        {intro && <p className="gpushare-Form-intro">{intro}</p>}
        <FormComponent
          schema={schema}
          uiSchema={Object.fromEntries(
            fields.flatMap(([name, { unit }]) =>
              unit ? [[name, { 'ui:field': AmountField }]] : []
            )
          )}
          templates={TEMPLATES}
          formData={this._values}
          validator={validator}
          transformErrors={this._transformErrors}
          extraErrors={
            refused ? { [refused]: { __errors: [this._refusal] } } : {}
          }
          idPrefix={ID}
          tagName="div"
          liveValidate
          showErrorList={false}
          onChange={({ formData }) => {
            this._values = formData!;
            this._refusal = '';
            this.update();
          }}
        />
        <div role="alert" className="gpushare-Form-refusal">
          {refused ? '' : this._refusal}
        </div>
        <div role="status" className="gpushare-Form-busy">
          {this._isBusy ? trans.__('Applying…') : ''}
        </div>
      </>
    );
  }

  /**
   * Name of the field that the server has refused, which begins the refusal.
   */
  private get _refused(): string | undefined {
    const name = /^\w*/.exec(this._refusal)![0];
    return name in this._options.schema.properties ? name : undefined;
  }

  private _isChanged(name: string): boolean {
    return this._values[name] !== this._present[name];
  }

  private _focus(name: string | undefined): void {
    this.node.querySelector<HTMLElement>(`[id="${ID}_${name}"]`)?.focus();
  }

  /**
   * Replace messages by those of the schema, and drop errors of unchanged
   * fields.
   */
  private _transformErrors = (
    errors: RJSFValidationError[]
  ): RJSFValidationError[] =>
    errors
      .filter(error => this._isChanged(fieldOf(error)!))
      .map(error => {
        const { errorMessage } =
          this._options.schema.properties[fieldOf(error)!];
        return { ...error, message: errorMessage ?? error.message };
      });

  private _values: ReadonlyJSONObject;
  private readonly _present: ReadonlyJSONObject;
  private _refusal = '';
  private _isBusy = false;
}

/** Field of a number with a unit, as users write it. */
function AmountField(props: FieldProps): React.ReactElement {
  const { schema, idSchema, rawErrors = [] } = props;
  const unit: string = schema.unit;
  const [first] = React.useState(() => ({
    value: props.formData,
    text: writeAmount(props.formData, unit)
  }));
  const [text, setText] = React.useState(first.text);
  return (
    <input
      id={idSchema.$id}
      type="text"
      className="jp-mod-styled"
      value={text}
      placeholder={schema.type?.includes('null') ? trans.__('no bound') : ''}
      autoComplete="off"
      spellCheck={false}
      aria-invalid={rawErrors.length > 0}
      aria-describedby={`${idSchema.$id}__description ${idSchema.$id}__error`}
      onChange={({ target }) => {
        setText(target.value);
        // The formatted text may be rounded, so the initial text stands for the
        // exact initial value.
        props.onChange(
          target.value === first.text
            ? first.value
            : readAmount(target.value, unit)
        );
      }}
    />
  );
}

/** A label, the field, a description and errors. */
function Field(props: FieldTemplateProps): React.ReactElement {
  const { id, label, schema, rawErrors = [], children } = props;
  if (schema.type === 'object') {
    return <>{children}</>;
  }
  return (
    <div className="gpushare-Form-field">
      <label htmlFor={id}>{label}</label>
      {children}
      <div id={`${id}__description`} className="gpushare-Form-hint">
        {schema.description}
      </div>
      <div
        id={`${id}__error`}
        className="gpushare-Form-error"
        aria-live="polite"
      >
        {[...new Set(rawErrors)].join(' ')}
      </div>
    </div>
  );
}

const TEMPLATES = { FieldTemplate: Field };

/** Return the name of the field that an error belongs to. */
function fieldOf(error: RJSFValidationError | undefined): string | undefined {
  return error?.property?.replace(/^\./, '');
}
