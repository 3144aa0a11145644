/** Accessibility, as far as axe can judge it. */
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const SOURCE = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const GRAVE = ['serious', 'critical'];

/**
 * Assert that axe finds nothing serious or critical in an element and what is
 * below it, in light and in dark; the theme is light afterwards. Keep pictures
 * of what was looked at.
 */
export async function assertAccessible(lab, locator, name) {
  const found = [];
  for (const theme of ['dark', 'light']) {
    await lab.theme(theme);
    await locator.waitFor();
    await lab.screenshot(`${name}-${theme}`);
    for (const finding of await findings(lab, locator)) {
      found.push(`${name}, ${theme}: ${finding}`);
    }
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
