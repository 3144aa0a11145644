/** What the tests do with the page. */
import { MessageLoop } from '@lumino/messaging';

/** Wait for something to come true on the page. */
export async function until(condition: () => unknown): Promise<void> {
  const deadline = Date.now() + 4000;
  while (!condition()) {
    if (Date.now() > deadline) {
      throw new Error(`Not seen: ${condition}\n${document.body.innerHTML}`);
    }
    MessageLoop.flush();
    await new Promise(resolve => setTimeout(resolve, 5));
  }
}
