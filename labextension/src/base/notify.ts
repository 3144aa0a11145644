/** Notifications, whose text is readable at any length. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';

import { trans } from './trans';

/** Characters after which JupyterLab cuts the text of a notification. */
const MAX_VISIBLE_LENGTH = 140;

/**
 * Show a notification, and return its id. A button shows the whole text if
 * JupyterLab cuts the text.
 *
 * @param autoClose - milliseconds, or false for a notification that stays
 */
export function notify(
  type: 'info' | 'success' | 'error',
  text: string,
  autoClose: number | false,
  actions: Notification.IAction[] = []
): string {
  const isCut = text.length > MAX_VISIBLE_LENGTH;
  const showAll = {
    label: trans.__('Show All'),
    callback: () => void showText(text)
  };
  return Notification.emit(text, type, {
    autoClose,
    actions: isCut ? [...actions, showAll] : actions
  });
}

function showText(text: string): Promise<unknown> {
  return showDialog({
    title: trans.__('GPU sharing'),
    body: text,
    buttons: [Dialog.okButton({ label: trans.__('Close') })]
  });
}
