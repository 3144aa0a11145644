/** Tests of the filter of kernels' wait displays. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { KernelMessage } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';

import { Given } from '../testing/given';
import { WaitDisplays } from './waitDisplays';

type Hook = (msg: KernelMessage.IMessage) => boolean;

/** The part of a kernel connection that the filter uses. */
class FakeConnection {
  readonly id = 'kernel';
  readonly anyMessage = new Signal<this, unknown>(this);
  /** Outputs of the cell. */
  outputs: unknown[] = [];

  registerMessageHook(msgId: string, hook: Hook): void {
    this._hooks[msgId] = hook;
  }

  /** Handles messages as JupyterLab does. */
  receive(data: object, msg_type = 'display_data'): void {
    const parent_header = { msg_id: 'request' };
    const msg = { header: { msg_type }, parent_header, content: { data } };
    this.anyMessage.emit({ direction: 'recv', msg });
    if (this._hooks.request?.(msg as KernelMessage.IMessage) ?? true) {
      this.outputs.push(data);
    }
  }

  private _hooks: Record<string, Hook> = {};
}

const WAIT = { 'application/vnd.gpushare.wait+json': {}, 'text/plain': 'x' };

describe('wait displays', () => {
  let given: Given;
  let kernel: FakeConnection | null;
  let displays: WaitDisplays;
  const context = {
    get session() {
      return { kernel };
    }
  };
  const kernelChanged = new Signal<object, void>(context);
  const connect = () => {
    kernel = new FakeConnection();
    kernelChanged.emit();
    return kernel;
  };

  beforeEach(() => {
    given = new Given();
    kernel = null;
    given.sharing.watch();
    const session = Object.assign(context, { kernelChanged }) as unknown;
    displays = given.own(
      new WaitDisplays(session as ISessionContext, given.sharing)
    );
  });

  afterEach(() => given.dispose());

  it('become no outputs, and other displays do', async () => {
    await given.show({});
    for (const connection of [connect(), connect()]) {
      connection.receive({ 'text/plain': 'before' });
      connection.receive(WAIT);
      connection.receive({ 'text/plain': 'after' });
      expect(connection.outputs).toHaveLength(2);
      expect(connection.outputs).not.toContain(WAIT);
    }
  });

  it('stay where the kernel is unknown, or the setting is off', async () => {
    connect().receive(WAIT);
    expect(kernel!.outputs).toEqual([WAIT]);
    await given.show({});
    displays.isEnabled = false;
    connect().receive(WAIT);
    expect(kernel!.outputs).toEqual([WAIT]);
    displays.isEnabled = true;
    connect().receive(WAIT);
    expect(kernel!.outputs).toEqual([]);
  });

  it('stay after the disposal of the filter', async () => {
    await given.show({});
    const connection = connect();
    displays.dispose();
    connection.receive(WAIT);
    expect(connection.outputs).toEqual([WAIT]);
  });
});
