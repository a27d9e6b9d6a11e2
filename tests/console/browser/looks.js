// Checks of views: the overview, the list and its filters, and a failure over five hops.

import { equal, inState, ok, open, send, until } from "./browser.js";

const CHAIN = ["ledger", "billing", "search", "research", "planner"];

export async function overview(browser, base) {
  const { page, go, live, close } = await open(browser, base);
  await page.goto(`${base}/console`);
  await live();
  equal(page.url(), `${base}/console/`, "the address with its slash");
  const agents = page.getByRole("region", { name: "Agents" });
  const names = agents.locator("tbody td:first-child a");
  await names.getByText("planner", { exact: true }).waitFor();
  ok((await names.allTextContents()).includes("ledger"), "every agent is listed");
  const workers = page.getByRole("region", { name: "Workers" });
  await workers.getByText("worker-eu-1").waitFor();
  await workers.getByText("0 / 16").first().waitFor();

  // Live updates: a running task, and one that asks a question.
  const sleeper = await send(base, "script", "sleep 60s");
  const row = agents.locator("tr", {
    has: page.getByRole("link", { name: "script", exact: true }),
  });
  await row.locator('[data-name="computing"]').getByText("1", { exact: true }).waitFor();
  const asker = await send(base, "script", 'ask "Which colour?"');
  const waiting = page.getByRole("region", { name: "Needs somebody" });
  await waiting.locator(`a[href="#/task/${asker}"]`).waitFor();

  await go("#/nowhere");
  await page.getByText("There is no such page").waitFor();
  await close();
  return { sleeper, asker };
}

export async function filters(browser, base) {
  const { page, go, live, close } = await open(browser, base);
  await go("#/tasks");
  await live();
  const rows = page.locator(".grid-row:not([hidden])");
  await rows.first().waitFor();
  const texts = (column) => rows.locator(`.c-${column}`).allTextContents();

  await page.getByLabel("State").selectOption("failed");
  await page.waitForURL("**/#/tasks?state=failed");
  await until("only failed ones are listed", async () => {
    const states = await texts("state");
    return states.length > 10 && states.every((state) => state === "failed");
  });
  await page.getByLabel("Reason").fill("READ_TIMEOUT");
  await page.waitForURL("**/#/tasks?state=failed&reason=READ_TIMEOUT");
  await until("only this reason is listed", async () => {
    const reasons = await texts("why");
    return reasons.length > 3 && reasons.every((reason) => reason.startsWith("READ_TIMEOUT"));
  });
  // The URL contains the filter, and works as a link and with the back button.
  await page.reload();
  await rows.first().waitFor();
  equal(await page.getByLabel("Reason").inputValue(), "READ_TIMEOUT", "the filter after a reload");
  await page.goBack();
  await until("the reason is gone again", async () => {
    return (await page.getByLabel("Reason").inputValue()) === "";
  });
  await go("#/tasks?agent=nobody");
  await page.getByText("Nothing fits these filters").waitFor();
  await page.getByRole("button", { name: "Show all tasks" }).click();
  await rows.first().waitFor();

  // New tasks appear at the top, and leave a list whose filter they no longer match.
  await go("#/tasks?agent=script&state=working");
  const id = await send(base, "script", 'sleep 1s; ask "And now?"');
  const link = page.locator(`.grid-row:not([hidden]) a[href="#/task/${id}"]`);
  await link.waitFor();
  await link.waitFor({ state: "hidden" });
  await close();
}

export async function chain(browser, base) {
  // The request below causes a 404, which browsers log as an error.
  const { page, go, live, close } = await open(browser, base, { expected: ["404"] });
  const id = await send(base, "planner", "Plan the refund for order 4711 and say what it costs.");
  const task = await inState(base, id, "FAILED");
  equal(task.failure.causes.length, 5, "hops of the failure");
  await go("#/tasks?agent=planner&state=failed");
  await live();
  // The list may contain the state before the failure or after it.
  await page.locator(`.grid-row a[href="#/task/${id}"]`).click();

  const why = page.getByRole("region", { name: "RATE_LIMITED in ledger" });
  await why.waitFor();
  ok((await why.textContent()).includes("4 hops below this task"), "how far down it was");
  const hops = why.locator(".hop");
  equal(await hops.locator(".hop-who strong").allTextContents(), [...CHAIN, "local"], "the hops");
  const origin = (await hops.first().textContent()).replace(/\s+/g, " ");
  for (const part of ["RATE_LIMITED", "CARD_17", "this was the 21st", "worker-eu-", "attempts 2"]) {
    await until(`the origin says ${part}: ${origin}`, async () =>
      (await hops.first().textContent()).includes(part),
    );
  }
  // The time of each hop, and the attempts of the hop that was retried.
  await until("every hop has its time", async () => (await why.locator(".span").count()) === 5);
  equal(await hops.first().locator("rect[data-tone]").count(), 2, "attempts at the origin");
  const answer = await hops.last().textContent();
  for (const part of ["429", "RESOURCE_EXHAUSTED", "−31008"]) ok(answer.includes(part), answer);
  const advice = await why.getByRole("complementary", { name: "What to do" }).textContent();
  for (const part of ["The caller can send again after", "Who acts: the caller"]) {
    ok(advice.includes(part), advice);
  }
  ok(!advice.includes("Wait for the delay"), `the meaning of the reason gives no advice: ${advice}`);

  // The same path in the tree, with a link for each step, and a branch that completed.
  const tree = page.getByRole("region", { name: "Delegated" });
  await until("the way down is open", async () => {
    const names = await tree.locator("a strong").allTextContents();
    return JSON.stringify(names) === JSON.stringify(["writer", ...CHAIN.toReversed().slice(1)]);
  });
  const timeline = page.getByRole("region", { name: "Timeline" });
  for (const part of ["Submitted", "Attempt 1", "Wrote", "Failed"]) {
    await timeline.getByText(part, { exact: false }).first().waitFor();
  }
  await page.getByRole("region", { name: "Artifacts" }).getByText('"order": 4711').waitFor();

  // The link to the trace, on another site.
  const trace = page.locator('a[href^="https://traces.example/"]');
  equal(await trace.getAttribute("href"), `https://traces.example/${task.traceId}`, "the trace");
  ok((await trace.getAttribute("rel")).includes("noopener"), "it learns nothing of this page");

  // A task of the chain links to its parent.
  await hops.nth(1).getByRole("link").click();
  await page.getByRole("heading", { level: 1, name: "billing" }).waitFor();
  await page.getByText("Delegated by").waitFor();
  await go("#/task/01a1e5fc-0000-7000-8000-000000000000");
  await page.getByText("No such task").waitFor();
  await close();
  return id;
}

/** Views of a task other than the failure chain. */
export async function shapes(browser, base) {
  const { page, go, live, close } = await open(browser, base);
  const fail = 'fail UNAVAILABLE text="away" retryable=false';
  const fanout = await send(base, "script", `fanout 2 of script,nobody { ${fail} }`);
  await inState(base, fanout, "FAILED");
  await go(`#/task/${fanout}`);
  await live();
  const why = page.getByRole("region", { name: "MIN_RESULTS_NOT_MET in script" });
  await why.getByText("AGENT_NOT_FOUND").waitFor();
  const branches = await why.locator(".branch strong").allTextContents();
  ok(branches.includes("nobody"), `the branches that failed: ${branches}`);
  ok((await why.locator(".origin").textContent()).includes("needed 2"), "what was needed");

  const caught = `try { delegate script { ${fail} } } else { chunk one; chunk " two"; chunk " three" }`;
  const degraded = await send(base, "script", caught);
  await inState(base, degraded, "COMPLETED");
  await go(`#/task/${degraded}`);
  const tolerated = page.getByRole("region", { name: "Degraded" });
  await tolerated.getByText("UNAVAILABLE in script: away").waitFor();
  const output = page.getByRole("region", { name: "Artifacts" }).locator("pre");
  equal(await output.allTextContents(), ["one two three"], "what was written bit by bit");

  // The view of a running task grows.
  const growing = await send(base, "script", 'chunk begun; ask "More?"');
  await inState(base, growing, "INPUT_REQUIRED");
  await go(`#/task/${growing}`);
  await page.getByRole("region", { name: "Timeline" }).getByText("Asks").waitFor();
  const more = await send(base, "script", "sleep 300ms; chunk done");
  await go(`#/task/${more}`);
  await page.locator(".task-head .state", { hasText: "completed" }).waitFor();
  await page.getByRole("region", { name: "Artifacts" }).getByText("done").waitFor();
  await close();
}

export async function failures(browser, base) {
  const { page, go, live, close } = await open(browser, base);
  await go("#/failures?since=24h");
  await live();
  const reasons = page.getByRole("region", { name: "Root reasons" });
  await reasons.getByText("RATE_LIMITED").waitFor();
  const first = await reasons.locator("li").first().textContent();
  ok(first.startsWith("RATE_LIMITED"), `the most frequent is first: ${first}`);
  const pairs = page.getByRole("region", { name: "Reasons and origins" });
  const pair = pairs.locator("tr", { hasText: "READ_TIMEOUT" });
  const tasks = Number((await pair.locator("td").nth(3).textContent()).replace(",", ""));
  await pair.locator("a.reason").click();
  await page.waitForURL("**state=failed&reason=READ_TIMEOUT&origin=search&from=*");
  await page.locator(".tally").getByText(`${tasks} tasks`, { exact: true }).waitFor();
  await page.goBack();
  // A bar of a chart links to its tasks.
  const bar = page.locator(".chart a").first();
  const told = Number(/(\d+) tasks? failed/.exec(await bar.getAttribute("aria-label"))[1]);
  await bar.click();
  await page.waitForURL("**from=*to=*");
  const listed = told === 1 ? "1 task" : `${told} tasks`;
  await page.locator(".tally").getByText(listed, { exact: true }).waitFor();
  await close();
}

export async function nothing(browser, base) {
  const { page, go, live, close } = await open(browser, base);
  await go();
  await live();
  await page.getByText("No agent was ever offered here").waitFor();
  await page.getByRole("heading", { name: "No worker is attached" }).waitFor();
  await page.getByText("faultline worker --agents echo,script").first().waitFor();
  await go("#/tasks");
  await page.getByText("No tasks yet").waitFor();
  await page.getByText("faultline send echo hello").waitFor();
  await go("#/failures");
  await page.getByText("Nothing failed").waitFor();
  await close();
}
