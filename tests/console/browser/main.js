// All checks of the console. Each is one line on stdout: its name, its result, and the error.

import { launch, wrong } from "./browser.js";
import * as acts from "./acts.js";
import * as looks from "./looks.js";
import { pictures } from "./pictures.js";
import * as trust from "./trust.js";

const base = process.env.FAULTLINE_URL;
const locked = process.env.FAULTLINE_LOCKED_URL;
const empty = process.env.FAULTLINE_EMPTY_URL;
const docs = process.env.FAULTLINE_DOCS;

const { browser, close } = await launch();
let failed = false;

/** A screenshot of a failed check, beside this file. */
async function show(name) {
  for (const context of browser.contexts()) {
    for (const page of context.pages()) {
      const file = `failed: ${name}.png`.replaceAll(/[^\w.]+/g, "-");
      await page.screenshot({ path: new URL(file, import.meta.url).pathname }).catch(() => {});
    }
    await context.close();
  }
}

async function check(name, run) {
  const start = Date.now();
  const line = { check: name, ok: true };
  let result;
  try {
    result = await run();
  } catch (error) {
    failed = true;
    await show(name);
    Object.assign(line, { ok: false, why: [String(error.message ?? error), ...wrong].join("; ") });
  }
  console.log(JSON.stringify({ ...line, ms: Date.now() - start }));
  return result;
}

const begun = await check("the overview shows agents, workers and what happens", () =>
  looks.overview(browser, base),
);
await check("filters are the address, and the list is live", () => looks.filters(browser, base));
const task = await check("a failure is drawn from its origin to the answer", () =>
  looks.chain(browser, base),
);
await check("branches, what was tolerated and what grows", () => looks.shapes(browser, base));
await check("failures lead to their tasks", () => looks.failures(browser, base));
await check("where there is nothing it says what to do", () => looks.nothing(browser, empty));
await check("a question is answered by its form", () => acts.answering(browser, base));
await check("a task is cancelled after a second thought", () =>
  acts.cancelling(browser, base, begun?.sleeper),
);
await check("the keyboard is enough", () => acts.keyboard(browser, base, begun?.asker));
await check("who may only look has nothing to press", () => acts.lookingOnly(browser, empty, base));
await check("a locked mesh asks for a token, and for a better one", () =>
  acts.locked(browser, locked),
);
await check("text is never markup", () => trust.hostile(browser, base));
await check("a lost connection is told and mended", () => trust.reconnecting(browser, base));
await check("ten thousand tasks stay smooth", () => trust.tenThousand(browser, base));
await check("light and dark, by the system or by choice", () => trust.themes(browser, base));
await check("380 pixels are enough", () => trust.narrow(browser, base, task));
if (docs) await check("pictures", () => pictures(browser, base, docs));
await close();
process.exit(failed ? 1 : 0);
