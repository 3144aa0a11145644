/** Cells of a notebook or console that were sent to its kernel. */

import type { Cell, ICodeCellModel } from '@jupyterlab/cells';
import type { ConsolePanel } from '@jupyterlab/console';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';

import { Disposable } from '../base/disposable';
import type { IRunningCells } from './waitModel';

/** Cells of a notebook that were sent to the notebook's kernel. */
export class NotebookRunningCells
  extends Disposable
  implements IRunningCells<Cell>
{
  constructor(private readonly _panel: NotebookPanel) {
    super();
    NotebookActions.executionScheduled.connect(this._onScheduled, this);
    NotebookActions.executed.connect(this._onExecuted, this);
  }

  readonly changed = new Signal<this, void>(this);

  /**
   * Return the first running cell.
   *
   * A cell that another user of a shared document has sent is found by its
   * state. A cell that another page has sent is found by the ids that the
   * kernel reports.
   */
  first(ids: ReadonlyArray<string>): Cell | null {
    const cells = this._panel.content.widgets;
    this._scheduled = this._scheduled.filter(isRunning);
    const [next] = this._scheduled;
    return next && cells.includes(next)
      ? next
      : (cells.find(isRunning) ??
          cells.find(({ model }) => ids.includes(model.id)) ??
          null);
  }

  private _onScheduled(_: unknown, { notebook, cell }: IScheduled): void {
    if (notebook === this._panel.content) {
      this._scheduled.push(cell);
      // JupyterLab sets the cell's state right after this signal.
      void Promise.resolve().then(() => this.changed.emit());
    }
  }

  private _onExecuted(_: unknown, { notebook }: IScheduled): void {
    if (notebook === this._panel.content) {
      this.changed.emit();
    }
  }

  private _scheduled: Cell[] = [];
}

/** Inputs of a console that were sent to the console's kernel. */
export class ConsoleRunningCells
  extends Disposable
  implements IRunningCells<Cell>
{
  constructor(private readonly _panel: ConsolePanel) {
    super();
    _panel.console.cells.changed.connect(this._onChanged, this);
    _panel.console.executed.connect(this._onChanged, this);
  }

  readonly changed = new Signal<this, void>(this);

  first(): Cell | null {
    const { cells } = this._panel.console;
    for (let i = 0; i < cells.length; i++) {
      if (isRunning(cells.get(i))) {
        return cells.get(i);
      }
    }
    return null;
  }

  private _onChanged(): void {
    this.changed.emit();
  }
}

interface IScheduled {
  readonly notebook: unknown;
  readonly cell: Cell;
}

function isRunning(cell: Cell): boolean {
  return (
    !cell.isDisposed &&
    cell.model.type === 'code' &&
    (cell.model as ICodeCellModel).executionState === 'running'
  );
}
