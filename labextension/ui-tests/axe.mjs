/** Accessibility checks with axe. */
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const SOURCE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const GRAVE = ['serious', 'critical'];

/**
 * Assert that axe finds nothing serious or critical in elements and their
 * descendants, in light and dark.
 *
 * The theme is light afterwards. Screenshots of both themes are kept.
 *
 * @param name - name of the screenshots
 */
export async function assertAccessible(lab, name, ...locators) {
  const found = [];
  for (const theme of ['dark', 'light']) {
    await lab.theme(theme);
    for (const locator of locators) {
      await locator.waitFor();
      for (const finding of await findings(lab, locator)) {
        found.push(`${theme}: ${finding}`);
      }
    }
    await lab.screenshot(`${name}-${theme}`);
  }
  assert.deepEqual(found, []);
}

async function findings({ page }, locator) {
  if (!(await page.evaluate(() => 'axe' in globalThis))) {
    await page.addScriptTag({ path: SOURCE });
  }
  const { violations } = await locator.evaluate(node =>
    globalThis.axe.run(node, { resultTypes: ['violations'] })
  );
  return violations
    .filter(({ impact }) => GRAVE.includes(impact))
    .flatMap(({ id, nodes }) =>
      nodes.map(
        ({ html, failureSummary }) => `${id}: ${html}: ${failureSummary}`
      )
    );
}
