import { Signal, type ISignal } from '@lumino/signaling';

/** What a typed text means, or what is wrong with it. */
export type Reading = { readonly value: unknown } | { readonly error: string };

/** The texts of a form, by field. */
export type Texts = Readonly<Record<string, string>>;

/** One line of a form. */
export interface IField {
  /** As the server knows it. */
  readonly name: string;
  readonly label: string;
  /** The text at first; a field that still reads so is not sent. */
  readonly initial: string;
  /** What is allowed, given what the other fields say. */
  hint(texts: Texts): string;
  read(text: string, texts: Texts): Reading;
  /** One of these, if it is no free text. */
  readonly options?: ReadonlyArray<IOption>;
  readonly placeholder?: string;
}

/** One choice of a field. */
export interface IOption {
  readonly text: string;
  readonly label: string;
}

/** A form that checks what is typed, and sends what was changed. */
export class FormModel {
  /**
   * @param send - rejects with the server's refusal
   * @param intro - what to know before filling it in
   */
  constructor(
    readonly fields: ReadonlyArray<IField>,
    private readonly _send: (
      changes: Readonly<Record<string, unknown>>
    ) => Promise<void>,
    readonly intro = ''
  ) {
    this._texts = Object.fromEntries(
      fields.map(({ name, initial }) => [name, initial])
    );
  }

  /** Emitted when anything below reads differently. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get texts(): Texts {
    return this._texts;
  }

  /** The server's words on what was sent last; empty since something changed. */
  get refusal(): string {
    return this._refusal;
  }

  /** Whether an answer is awaited. */
  get isBusy(): boolean {
    return this._isBusy;
  }

  set(name: string, text: string): void {
    this._texts = { ...this._texts, [name]: text };
    this._refusal = '';
    this._changed.emit();
  }

  /** What is wrong with a field; empty if nothing is, or it is as before. */
  errorOf(name: string): string {
    const field = this.fields.find(field => field.name === name)!;
    if (this._texts[name] === field.initial) {
      return '';
    }
    const reading = field.read(this._texts[name], this._texts);
    return 'error' in reading ? reading.error : '';
  }

  /** The first field with a mistake; null if there is none. */
  get firstWrong(): string | null {
    return this.fields.find(({ name }) => this.errorOf(name))?.name ?? null;
  }

  /** The values that are to be sent. */
  get changes(): Readonly<Record<string, unknown>> {
    const changes: Record<string, unknown> = {};
    for (const { name, initial, read } of this.fields) {
      const text = this._texts[name].trim();
      const reading = read(text, this._texts);
      if (text !== initial && 'value' in reading) {
        changes[name] = reading.value;
      }
    }
    return changes;
  }

  /** Send the changes; resolves with whether there is nothing left to do. */
  async submit(): Promise<boolean> {
    if (this._isBusy || this.firstWrong !== null) {
      return false;
    }
    const { changes } = this;
    if (Object.keys(changes).length === 0) {
      return true;
    }
    this._isBusy = true;
    this._refusal = '';
    this._changed.emit();
    try {
      await this._send(changes);
      return true;
    } catch (error) {
      this._refusal = (error as Error).message;
      return false;
    } finally {
      this._isBusy = false;
      this._changed.emit();
    }
  }

  private _texts: Texts;
  private _refusal = '';
  private _isBusy = false;
  private _changed = new Signal<this, void>(this);
}
