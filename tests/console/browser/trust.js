// Checks of robustness: text is never markup (XSS), a lost connection is shown and restored, and the
// list stays fast with ten thousand tasks.

import { connect, createServer } from "node:net";
import { equal, inState, ok, open, send, until } from "./browser.js";

const EVIL = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`;

export async function hostile(browser, base) {
  const { page, go, live, close } = await open(browser, base);
  const quoted = EVIL.replaceAll('"', '\\"');
  const failed = await send(
    base,
    "script",
    `artifact "${quoted}" "${quoted}"; fail INTERNAL code="${quoted}" text="${quoted}"`,
  );
  const asking = await send(base, "script", `ask "${quoted}"`);
  await inState(base, failed, "FAILED");
  await inState(base, asking, "INPUT_REQUIRED");
  for (const [hash, part] of [
    [`#/task/${failed}`, "Artifacts"],
    [`#/task/${asking}`, "script asks"],
  ]) {
    await go(hash);
    await live();
    await page.getByRole("region", { name: part }).getByText(EVIL).first().waitFor();
  }
  // Names that the mesh refuses, in case another version accepts them.
  const evil = async (route) => {
    const answer = await (await route.fetch()).text();
    await route.fulfill({ body: answer.replaceAll("planner", JSON.stringify(EVIL).slice(1, -1)) });
  };
  for (const method of ["Agents", "Tasks", "Failures", "Activity"]) {
    await page.route(`**/mesh/${method}`, evil);
  }
  for (const hash of ["#/", "#/tasks", "#/failures"]) {
    await go(hash);
    await live();
    await page.locator("main").getByText("RATE_LIMITED").or(page.getByText(EVIL)).first().waitFor();
  }
  await go("#/");
  await page
    .getByRole("region", { name: "Agents" })
    .getByRole("link", { name: EVIL })
    .first()
    .waitFor();
  await page.unrouteAll({ behavior: "wait" });
  await go(`#/tasks?agent=${encodeURIComponent(EVIL)}&reason=${encodeURIComponent(EVIL)}`);
  await page.getByText("Nothing fits these filters").waitFor();
  for (const nowhere of [encodeURIComponent(EVIL), "constructor", "task%2F%zz"]) {
    await go("#/");
    await page.getByRole("region", { name: "Agents" }).waitFor();
    await go(`#/${nowhere}`);
    await page.getByText("There is no such page").waitFor();
  }
  equal(await page.evaluate(() => [window.hacked, document.images.length]), [null, 0], "harm");
  await close();
}

/** A proxy to the gateway whose connections can be cut. */
async function wire(base) {
  const { hostname, port } = new URL(base);
  const open = new Set();
  let whole = true;
  const server = createServer((near) => {
    if (!whole) {
      near.destroy();
      return;
    }
    const far = connect(Number(port), hostname);
    for (const socket of [near, far]) {
      open.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        near.destroy();
        far.destroy();
        open.delete(socket);
      });
    }
    near.pipe(far).pipe(near);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    cut() {
      whole = false;
      for (const socket of open) socket.destroy();
    },
    mend: () => (whole = true),
    close: () => {
      for (const socket of open) socket.destroy();
      server.close();
    },
  };
}

export async function reconnecting(browser, base) {
  const line = await wire(base);
  const { page, go, live, close } = await open(browser, line.url, { expected: ["net::ERR"] });
  await go("#/tasks");
  await live();
  await page.locator(".grid-row:not([hidden])").first().waitFor();
  let calls = 0;
  page.on("request", () => (calls += 1));
  line.cut();
  const note = page.getByRole("alert").filter({ hasText: "Lost the connection" });
  await note.waitFor();
  // Scroll to where the next page would be loaded while the gateway is unreachable.
  await page.mouse.move(640, 500);
  await page.mouse.wheel(0, 100_000);
  await note.getByText("Trying again in 2 s").waitFor();
  ok(calls < 10, `${calls} calls while there was nobody to answer`);
  const missed = await send(base, "echo", "while nobody listened");
  line.mend();
  await note.getByRole("button", { name: "Try now" }).click();
  await live();
  await note.waitFor({ state: "hidden" });
  // The list continues, and missed tasks are announced above it without moving rows.
  await page.locator(".tally").getByText("400 tasks so far").waitFor();
  await page.getByRole("button", { name: /↑ \d+ tasks? changed/ }).click();
  await page.locator(`.grid-row:not([hidden]) a[href="#/task/${missed}"]`).waitFor();
  const next = await send(base, "echo", "now they do");
  await page.locator(`.grid-row:not([hidden]) a[href="#/task/${next}"]`).waitFor();
  await close();
  line.close();
}

export async function tenThousand(browser, base) {
  const { page, go, live, close } = await open(browser, base);
  await go("#/tasks?to=" + encodeURIComponent(new Date(Date.now() - 60_000).toISOString()));
  await live();
  await page.locator(".grid-row:not([hidden])").first().waitFor();
  await page.evaluate(() => {
    window.frames_ = { longest: 0, count: 0, rows: 0 };
    let last = performance.now();
    const frame = (now) => {
      const seen = window.frames_;
      seen.longest = Math.max(seen.longest, now - last);
      seen.count += 1;
      seen.rows = Math.max(seen.rows, document.querySelectorAll(".grid-row").length);
      last = now;
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  });
  await page.mouse.move(640, 500);
  const tally = page.locator(".tally");
  await until("all ten thousand were scrolled past", async () => {
    await page.mouse.wheel(0, 4000);
    return (await tally.textContent()) === "10,000 tasks";
  });
  const { longest, count, rows } = await page.evaluate(() => window.frames_);
  ok(rows < 80, `${rows} rows exist at most`);
  ok(count > 50 && longest < 700, `${count} frames, the longest ${Math.round(longest)} ms`);
  // Going back from a task restores the scroll position.
  await page.locator(".grid-row:not([hidden]) .c-id a").nth(12).click();
  await page.waitForURL("**/#/task/*");
  await page.goBack();
  await tally.getByText("10,000 tasks").waitFor();
  ok((await page.getByRole("grid").evaluate((grid) => grid.scrollTop)) > 10_000, "where one was");
  await close();
}

export async function themes(browser, base) {
  const { page, go, live, close } = await open(browser, base, { colorScheme: "dark" });
  await go();
  await live();
  const light = () =>
    page.evaluate(() => {
      const [r, g, b] = getComputedStyle(document.body)
        .backgroundColor.match(/[\d.]+/g)
        .map(Number);
      return (r + g + b) / 3 > 128;
    });
  ok(!(await light()), "dark where the system is");
  await page.getByRole("button", { name: "Theme: as the system" }).click();
  ok(await light(), "light where that was chosen");
  await page.reload();
  await live();
  ok(await light(), "and it stays so");
  await page.getByRole("button", { name: "Theme: light" }).click();
  await page.getByRole("button", { name: "Theme: dark" }).click();
  await close();
}

/** No page is wider than a small telephone. */
export async function narrow(browser, base, failed) {
  const viewport = { width: 380, height: 700 };
  const { page, go, live, close } = await open(browser, base, { viewport });
  for (const hash of ["#/", "#/tasks", `#/task/${failed}`, "#/failures"]) {
    await go(hash);
    await live();
    await page.locator("main .panel, main .grid-row").first().waitFor();
    const wide = await page.evaluate(() => document.getElementById("main").scrollWidth);
    ok(wide <= 380, `${hash} is ${wide} wide`);
  }
  await close();
}
