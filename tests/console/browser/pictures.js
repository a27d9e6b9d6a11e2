// Writes the pictures in docs/, if FAULTLINE_DOCS is set.

import { inState, open, send } from "./browser.js";

export async function pictures(browser, base, directory) {
  const failed = await send(
    base,
    "planner",
    "Plan the refund for order 4711 and say what it costs.",
  );
  const asking = await send(base, "refunds", "order 4711");
  const working = await Promise.all([1, 2, 3].map(() => send(base, "script", "sleep 60s")));
  await inState(base, failed, "FAILED");
  await inState(base, asking, "INPUT_REQUIRED");
  const pages = [
    ["overview", "#/", 800],
    ["tasks", "#/tasks", 800],
    ["task", `#/task/${failed}`, 1010],
    ["question", `#/task/${asking}`, 800],
    ["failures", "#/failures?since=24h", 800],
  ];
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, hash, height] of pages) {
      const viewport = { width: 1280, height };
      const { page, go, live, close } = await open(browser, base, { colorScheme, viewport });
      await go(hash);
      await live();
      await page.locator("main .panel, main .grid-row").first().waitFor();
      await page.waitForLoadState("networkidle", { timeout: 1500 }).catch(() => {});
      await page.evaluate(() => document.activeElement?.blur());
      await page.screenshot({ path: `${directory}/console-${name}-${colorScheme}.png` });
      await close();
    }
  }
  return working;
}
