/** Accessibility, as far as axe can judge it. */
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const SOURCE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const GRAVE = ['serious', 'critical'];

/**
 * Assert that axe finds nothing serious or critical in elements and what is
 * below them, in light and in dark; the theme is light afterwards. Keep
 * pictures of what was looked at.
 *
 * @param name - of the pictures
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
