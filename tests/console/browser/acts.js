// Checks of actions: answers and cancels, by mouse and by keyboard, and missing permissions.

import { equal, inState, ok, open, send, until } from "./browser.js";

export async function answering(browser, base) {
  const refused = { expected: ["400"] };
  const { page, go, live, close } = await open(browser, base, refused);
  const id = await send(base, "refunds", "order 4711");
  await inState(base, id, "INPUT_REQUIRED");
  await go(`#/task/${id}`);
  await live();
  const form = page.getByRole("region", { name: "refunds asks" });
  await form.getByText("How much may the refund for order 4711 be?").waitFor();
  await form.getByText("The policy allows 500").waitFor();
  const [amount, due] = [form.getByLabel("Amount in euros"), form.getByLabel("Due")];

  // Validation by the browser, then by the mesh, each at its field.
  await amount.fill("501");
  await form.getByRole("button", { name: "Answer" }).click();
  await until(
    "the amount is refused",
    async () => (await amount.getAttribute("aria-invalid")) === "true",
  );
  ok(await amount.evaluate((field) => field === document.activeElement), "it has the focus");
  await amount.fill("120");
  await form.getByLabel("Who pays").selectOption("carrier");
  await due.fill("tomorrow");
  await form.getByRole("button", { name: "Answer" }).click();
  await form.getByText("must be a time such as").waitFor();
  equal(await due.getAttribute("aria-invalid"), "true", "the field that the mesh refused");
  equal(await amount.inputValue(), "120", "what was typed is still there");

  await due.fill("2026-12-24T12:00:00Z");
  await form.getByLabel("Tell the customer").uncheck();
  await form.getByRole("button", { name: "Answer" }).click();
  await page.locator(".task-head .state", { hasText: "completed" }).waitFor();
  const receipt = page.getByRole("region", { name: "Artifacts" });
  await receipt.getByText('"amount":120').waitFor();
  const text = await receipt.textContent();
  ok(text.includes('"notify":false') && text.includes('"payer":"carrier"'), text);
  await form.waitFor({ state: "detached" });
  await inState(base, id, "COMPLETED");

  // A decline, and an approval.
  const declined = await send(base, "refunds", "order 4712");
  await inState(base, declined, "INPUT_REQUIRED");
  await go(`#/task/${declined}`);
  await page.getByRole("button", { name: "Decline" }).click();
  await inState(base, declined, "REJECTED");
  const approved = await send(base, "deploys", "it");
  await inState(base, approved, "INPUT_REQUIRED");
  await go(`#/task/${approved}`);
  await page.getByRole("button", { name: "Approve" }).click();
  await page.locator("pre", { hasText: "deployed" }).waitFor();
  await close();
}

export async function cancelling(browser, base, id) {
  const { page, go, live, close } = await open(browser, base);
  await go(`#/task/${id}`);
  await live();
  const button = page.getByRole("button", { name: "Cancel task" });
  await button.click();
  await page.getByRole("button", { name: "Let it run" }).click();
  await inState(base, id, "WORKING");
  await button.click();
  await page.getByLabel("Why").fill("too dear");
  await page.getByRole("button", { name: "Cancel the task" }).click();
  await page.locator(".task-head .state", { hasText: "canceled" }).waitFor();
  await button.waitFor({ state: "detached" });
  const task = await inState(base, id, "CANCELED");
  ok(JSON.stringify(task).includes("too dear"), "whoever waits for it reads why");
  await close();
}

/** From the list to an answered question by keyboard only. */
export async function keyboard(browser, base, id) {
  const { page, go, live, close } = await open(browser, base);
  await go("#/");
  await live();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("t");
  await page.waitForURL("**/#/tasks");
  await page.locator(".grid-row:not([hidden])").first().waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("script");
  await page.keyboard.press("Escape");
  await page.waitForURL("**/#/tasks?agent=script");
  await until("only its tasks are listed", async () => {
    const agents = await page.locator(".grid-row:not([hidden]) .c-agent strong").allTextContents();
    return agents.length > 0 && agents.every((agent) => agent === "script");
  });
  // Move down to the task and open it.
  const active = page.locator(".grid-row.active a");
  await page.keyboard.press("j");
  while ((await active.getAttribute("href")) !== `#/task/${id}`) {
    const before = await page.locator(".grid-row.active").getAttribute("aria-rowindex");
    await page.keyboard.press("j");
    const after = await page.locator(".grid-row.active").getAttribute("aria-rowindex");
    ok(before !== after, "the task is on the list");
  }
  const chosen = await page.locator(".grid-row.active").getAttribute("id");
  const said = await page.getByRole("grid").getAttribute("aria-activedescendant");
  equal(said, chosen, "what a screen reader is told");
  await page.keyboard.press("Enter");
  await page.waitForURL(`**/#/task/${id}`);
  await page.getByText("Which colour?").first().waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("green");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await inState(base, id, "COMPLETED");
  await page.locator(".task-head .state", { hasText: "completed" }).waitFor();
  await page.keyboard.press("Escape");
  await page.waitForURL("**/#/tasks?agent=script");
  await close();
}

/** Without the permission to act the console has no buttons. */
export async function lookingOnly(browser, base, busy) {
  const { page, close } = await open(browser, base);
  // This mesh has no workers, so the answers about the task come from the busy mesh.
  const id = await send(busy, "script", 'ask "Well?"');
  const task = await inState(busy, id, "INPUT_REQUIRED");
  await page.route("**/mesh/Inspect", (route) => route.fulfill({ json: task }));
  await page.route("**/mesh/Events", (route) => route.fulfill({ json: {} }));
  await page.goto(`${base}/console/#/task/${id}`);
  await page.getByText("This console only looks").waitFor();
  await page.getByText(`faultline answer ${id} TEXT`).waitFor();
  equal(await page.getByRole("button", { name: /Cancel|Answer|Decline/ }).count(), 0, "buttons");
  await close();
}

export async function locked(browser, base) {
  const unauthorised = { expected: ["401", "403"] };
  const { page, go, live, close } = await open(browser, base, unauthorised);
  await go();
  const dialog = page.getByRole("dialog", { name: "Who are you?" });
  const enter = async (token) => {
    await dialog.getByLabel("Token").fill(token);
    await dialog.getByRole("button", { name: "Continue" }).click();
  };
  await dialog.waitFor();
  await page.keyboard.press("Escape");
  ok(await dialog.isVisible(), "there is nothing behind it");
  await enter("wrong");
  await dialog.getByText("this token is unknown here").waitFor();
  await enter("only-read");
  await page.getByText("Not for this token").waitFor();
  await page.getByText("'operate'").waitFor();
  await page.getByRole("button", { name: "Use another token" }).click();
  await enter("let-me-in");
  await live();
  await page.getByRole("region", { name: "Agents" }).getByText("echo").first().waitFor();
  // The token is stored for this tab only.
  await page.reload();
  await live();
  equal(await page.evaluate(() => Object.keys(localStorage)), [], "what is kept for good");
  ok(!(await page.content()).includes("let-me-in"), "no page shows it");
  const id = await send(base, "echo", "hello", "let-me-in");
  await go(`#/task/${id}`);
  await page.getByRole("region", { name: "Artifacts" }).getByText("hello").waitFor();
  await page.getByRole("button", { name: "Forget the token" }).click();
  await dialog.waitFor();
  await close();
}
