// Helpers of the checks: a browser with a fresh profile, pages that record their errors, and calls to
// the mesh as a client.

import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const PATIENCE_MS = 20_000;
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"];

/** Errors, warnings and foreign calls of the open page. */
export const wrong = [];

export async function launch(flags = []) {
  const path = execFileSync("sh", ["-c", "command -v chromium"], { encoding: "utf8" }).trim();
  const profile = mkdtempSync(join(tmpdir(), "faultline-console-"));
  const browser = await chromium.launch({
    executablePath: path,
    args: [...FLAGS, ...flags, `--crash-dumps-dir=${profile}`],
  });
  const close = async () => {
    await browser.close();
    rmSync(profile, { recursive: true, force: true });
  };
  return { browser, close };
}

/**
 * A page that records its errors and the origins that it calls. `expected` are errors that a check
 * causes on purpose.
 */
export async function open(browser, base, options = {}) {
  const { expected = [], ...rest } = options;
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...rest });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  wrong.length = 0;
  const complain = (text) => expected.some((one) => text.includes(one)) || wrong.push(text);
  page.on("pageerror", (error) => complain(error.message));
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complain(message.text());
  });
  page.on("dialog", (dialog) => {
    wrong.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    const own = url.protocol === "data:" || url.origin === new URL(base).origin;
    if (!own) wrong.push(`a call to ${url.origin}`);
  });
  return {
    page,
    go: (hash = "#/") => page.goto(`${base}/console/${hash}`),
    live: () => page.locator('#link[data-state="live"]').waitFor(),
    /** Closes the page, and fails if it has recorded an error. */
    async close() {
      await context.close();
      equal(wrong, [], "what the page complained about");
    },
  };
}

export function equal(seen, wanted, what) {
  const [a, b] = [JSON.stringify(seen), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`${what}: ${a} and not ${b}`);
}

export function ok(fine, what) {
  if (!fine) throw new Error(what);
}

/** Polls a condition until it is true. */
export async function until(what, look) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    ok(Date.now() < end, `waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

let sent = 0;

/** Starts a task and returns its id without waiting for the end. */
export async function send(base, agent, text, token) {
  sent += 1;
  const message = { messageId: `m-${sent}`, role: "ROLE_USER", parts: [{ text }] };
  const params = { message, configuration: { returnImmediately: true } };
  const headers = { "Content-Type": "application/json", "A2A-Version": "1.0" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "SendMessage", params });
  const response = await fetch(`${base}/agents/${agent}`, { method: "POST", headers, body });
  const answer = await response.json();
  ok(answer.result?.task, `a task of ${agent}: ${JSON.stringify(answer)}`);
  return answer.result.task.id;
}

/** A task as operators read it. */
export async function inspect(base, taskId) {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ taskId });
  const response = await fetch(`${base}/mesh/Inspect`, { method: "POST", headers, body });
  return response.json();
}

export function inState(base, taskId, state) {
  return until(`${taskId} is ${state}`, async () => {
    const task = await inspect(base, taskId);
    return task.task?.status?.state === `TASK_STATE_${state}` ? task : null;
  });
}
