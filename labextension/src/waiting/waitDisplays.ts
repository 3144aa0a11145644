import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';

import { Toggleable } from '../base/disposable';
import type { SharingModel } from '../sharing/sharingModel';

/** The MIME type of the display in which a kernel shows that its cell waits. */
const MIME_TYPE = 'application/vnd.gpushare.wait+json';

/**
 * Replacement of the displays in which the kernel of a document shows its waits,
 * where the extension draws the waits, outside of the outputs.
 *
 * A display is dropped before it becomes an output, and updates of a display that
 * is no output have no effect. A renderer for the MIME type would leave an output
 * in the notebook, and JupyterLab updates later displays by the number of their
 * output, so that an output can't be removed.
 */
export class WaitDisplays extends Toggleable {
  constructor(
    private readonly _context: Pick<
      ISessionContext,
      'session' | 'kernelChanged'
    >,
    private readonly _sharing: SharingModel
  ) {
    super();
    _context.kernelChanged.connect(this._onKernel, this);
    this._onKernel();
  }

  protected refresh(): void {}

  private _onKernel(): void {
    const kernel = this._context.session?.kernel;
    kernel?.anyMessage.connect(this._onMessage, this);
  }

  /** Runs when a message arrives, before the kernel's futures handle it. */
  private _onMessage(
    kernel: Kernel.IKernelConnection,
    { direction, msg }: Kernel.IAnyMessageArgs
  ): void {
    if (!this.isEnabled || direction !== 'recv' || !isWaitDisplay(msg)) {
      return;
    }
    const { kind } = this._sharing.view(kernel.id);
    if (kind === 'client' || kind === 'unavailable') {
      const { msg_id } = msg.parent_header as KernelMessage.IHeader;
      kernel.registerMessageHook(msg_id, isOther);
    }
  }
}

function isWaitDisplay(msg: KernelMessage.IMessage): boolean {
  return (
    msg.header.msg_type === 'display_data' &&
    MIME_TYPE in (msg as KernelMessage.IDisplayDataMsg).content.data
  );
}

/** A message hook: the kernel connection drops a message if it returns false. */
function isOther(msg: KernelMessage.IMessage): boolean {
  return !isWaitDisplay(msg);
}
