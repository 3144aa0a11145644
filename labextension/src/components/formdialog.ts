import { Dialog } from '@jupyterlab/apputils';

import type { FormModel } from '../model/form';
import { Form } from './form';

/**
 * A dialog that stays open, with what was typed, until the server has accepted
 * it or the user gives up.
 */
export class FormDialog extends Dialog<null> {
  constructor(options: FormDialog.IOptions) {
    const form = new Form(options.form, options.busyText);
    super({
      title: options.title,
      body: form,
      buttons: [
        Dialog.cancelButton({ label: options.cancelLabel }),
        Dialog.okButton({ label: options.acceptLabel })
      ],
      focusNodeSelector: 'input, select'
    });
    this.addClass('gpushare-FormDialog');
    this._form = form;
    this._model = options.form;
    this._model.changed.connect(this._onChanged, this);
  }

  dispose(): void {
    this._model.changed.disconnect(this._onChanged, this);
    super.dispose();
  }

  /** Open it; resolves with whether something was accepted. */
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

  // The button stays enabled: pressed too early, it leads to the mistake.
  protected _checkValidation(): void {}

  private _onChanged(): void {
    const button = this.node.querySelector('.jp-mod-accept');
    button?.setAttribute('aria-disabled', String(this._model.isBusy));
  }

  private async _submit(): Promise<void> {
    if (await this._model.submit()) {
      super.resolve(1);
    } else if (!this.isDisposed) {
      this._form.focusWrong();
    }
  }

  private readonly _form: Form;
  private readonly _model: FormModel;
}

export namespace FormDialog {
  export interface IOptions {
    title: string;
    form: FormModel;
    acceptLabel: string;
    cancelLabel: string;
    /** What is said while the server's answer is awaited. */
    busyText: string;
  }
}
