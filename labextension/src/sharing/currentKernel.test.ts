/**
 * Tests of CurrentKernel: changes of document and kernel, restarts and
 * disposal.
 */

import type { ISessionContext } from '@jupyterlab/apputils';
import { Signal } from '@lumino/signaling';

import { CurrentKernel } from './currentKernel';

/** The part of a session that the current kernel uses. */
class FakeSession {
  constructor(public kernel: string | null) {}
  isDisposed = false;
  hasNoKernel = true;
  path = 'a.ipynb';
  readonly kernelChanged = new Signal<this, void>(this);
  readonly statusChanged = new Signal<this, string>(this);
  readonly disposed = new Signal<this, void>(this);

  get session(): { kernel: { id: string } | null } {
    return { kernel: this.kernel === null ? null : { id: this.kernel } };
  }

  setKernel(kernel: string | null): void {
    this.kernel = kernel;
    this.kernelChanged.emit();
  }
}

describe('CurrentKernel', () => {
  let document: FakeSession | null;
  let current: CurrentKernel;
  let seen: (string | null)[];
  let restarts: string[];
  const shell = {};
  const switched = new Signal<object, void>(shell);

  beforeEach(() => {
    document = null;
    current = new CurrentKernel(
      [switched],
      () => document as unknown as ISessionContext | null
    );
    seen = [];
    restarts = [];
    current.changed.connect(() => seen.push(current.kernelId));
    current.restarting.connect((_, id) => restarts.push(id));
  });

  afterEach(() => current.dispose());

  function open(session: FakeSession | null): FakeSession | null {
    document = session;
    switched.emit();
    return session;
  }

  it('has the path of a notebook until its kernel has started', () => {
    const session = new FakeSession(null);
    session.hasNoKernel = false;
    open(session);
    expect(current.startingPath).toBe('a.ipynb');
    session.setKernel('a');
    expect(current.startingPath).toBeNull();
    session.hasNoKernel = true;
    session.setKernel(null);
    expect(current.startingPath).toBeNull();
    expect(seen).toEqual([null, 'a', null]);
  });

  it('follows the user from document to document', () => {
    open(new FakeSession('a'));
    open(new FakeSession('b'));
    open(null);
    expect(seen).toEqual(['a', 'b', null]);
  });

  it('follows a change of kernel, also from none and to none', () => {
    const session = open(new FakeSession(null))!;
    session.setKernel('a');
    session.setKernel('b');
    session.setKernel(null);
    expect(seen).toEqual(['a', 'b', null]);
  });

  it('ignores a document that is no longer current', () => {
    const left = open(new FakeSession('a'))!;
    open(new FakeSession('b'));
    left.setKernel('c');
    left.statusChanged.emit('restarting');
    expect(seen).toEqual(['a', 'b']);
    expect(restarts).toEqual([]);
  });

  it('reports the start and the end of a restart', () => {
    const { statusChanged } = open(new FakeSession('a'))!;
    ['busy', 'idle', 'restarting', 'starting', 'idle', 'busy', 'idle'].forEach(
      status => statusChanged.emit(status)
    );
    expect(restarts).toEqual(['a', 'a']);
    statusChanged.emit('autorestarting');
    expect(restarts).toHaveLength(3);
  });

  it('is null after the document was closed', () => {
    const session = open(new FakeSession('a'))!;
    session.isDisposed = true;
    session.disposed.emit();
    expect(seen).toEqual(['a', null]);
  });

  it('ignores all signals after its disposal', () => {
    const session = open(new FakeSession('a'))!;
    current.dispose();
    session.setKernel('b');
    open(new FakeSession('c'));
    expect(seen).toEqual(['a']);
  });
});
