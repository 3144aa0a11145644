/** Filter of kernels' wait displays, which this extension draws itself. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';

import { Toggleable } from '../base/disposable';
import type { SharingModel } from '../sharing/sharingModel';

/** MIME type of the display in which a kernel shows that its cell waits. */
const MIME_TYPE = 'application/vnd.gpushare.wait+json';

/**
 * Filter that drops a kernel's wait displays where this extension draws the
 * waits.
 *
 * A display is dropped before the display becomes an output. Updates of a
 * display without an output have no effect.
 *
 * A renderer for the MIME type cannot replace the filter, because a renderer
 * leaves an output in the notebook. JupyterLab numbers later displays by their
 * outputs, so an output cannot be removed.
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

  /** Handle a message before the kernel's futures do. */
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

/** Return whether a message is kept, as a message hook does. */
function isOther(msg: KernelMessage.IMessage): boolean {
  return !isWaitDisplay(msg);
}
