// Calls of the gateway, the stream of changes, and the token of the user. No page is known here.
// The token is kept until the tab is closed, and is sent to this gateway only.

const TOKEN = "faultline.token";
const PAUSES_MS = [500, 1000, 2000, 4000, 8000, 15_000];

/** A rejection by the gateway. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The gateway answered ${status}.`);
    this.status = status;
    const details = Array.isArray(error?.details) ? error.details : [];
    const of = (name) => details.find((detail) => String(detail["@type"]).endsWith(name));
    this.reason = of("google.rpc.ErrorInfo")?.reason ?? "";
    this.violations = of("google.rpc.BadRequest")?.fieldViolations ?? [];
  }

  /** Whether a retry may help. */
  get passes() {
    return this.status === 503 || this.status === 502 || this.status === 504 || this.status === 429;
  }
}

/** The gateway did not answer. */
export class Lost extends Error {}

let token = sessionStorage.getItem(TOKEN);
export const hasToken = () => Boolean(token);

export function setToken(value) {
  token = value;
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

/** Asks the user for a token; set by the frame. Resolves when a token was entered. */
let askForToken = async () => {};
export const onLocked = (ask) => (askForToken = ask);

async function request(path, options) {
  for (;;) {
    const sent = token;
    const headers = { "Content-Type": "application/json" };
    if (sent) headers.Authorization = `Bearer ${sent}`;
    let response;
    try {
      response = await fetch(path, {
        ...options,
        headers,
        cache: "no-store",
        redirect: "error",
        credentials: "omit",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Lost("The gateway cannot be reached.");
    }
    if (response.ok) return response;
    const refused = new Refused(response.status, (await response.json().catch(() => null))?.error);
    if (response.status !== 401) throw refused;
    await askForToken(refused, sent);
  }
}

async function read(response) {
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Lost("The answer broke off.");
  }
}

/** Calls one method of the operators' view. */
export async function call(method, body = {}, signal) {
  return read(
    await request(`../mesh/${method}`, { method: "POST", body: JSON.stringify(body), signal }),
  );
}

/** Fetches one file of the console. */
export async function load(name) {
  return read(await request(name, { method: "GET" }));
}

/** Listeners for the state of the stream: `live`, or `lost` with the time of the next attempt. */
let reportLink = () => {};
export const onLink = (report) => (reportLink = report);
let hurry = () => {};
/** Reconnects at once. */
export const reconnect = () => hurry();

/**
 * Follows changes until `signal` aborts, with reconnects.
 * `opened` is called each time that changes may have been missed; `changed` with each batch.
 */
export async function follow(filter, { opened, changed }, signal) {
  let failed = 0;
  while (!signal.aborted) {
    if (document.hidden) await visible(signal);
    try {
      const response = await request("../mesh/Watch", {
        method: "POST",
        body: JSON.stringify({ filter }),
        signal,
      });
      failed = 0;
      reportLink({ state: "live" });
      opened();
      for await (const message of events(response.body, signal)) changed(message);
      throw new Lost("The gateway ended the stream.");
    } catch (error) {
      if (signal.aborted) return;
      if (document.hidden) continue;
      const pause = PAUSES_MS[Math.min(failed, PAUSES_MS.length - 1)];
      failed += 1;
      const until = Date.now() + pause;
      reportLink({ state: "lost", until, error });
      await wait(pause, signal);
    }
  }
}

/** Parses a stream of server-sent events into messages. */
async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  // A hidden page needs no updates, so its stream is closed.
  const hide = () => document.hidden && reader.cancel().catch(() => {});
  document.addEventListener("visibilitychange", hide);
  try {
    let unread = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || signal.aborted) return;
      unread += value;
      const whole = unread.split("\n\n");
      unread = whole.pop();
      for (const event of whole) {
        const lines = event.split("\n");
        const data = lines
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trim());
        if (data.length === 0) continue;
        const message = JSON.parse(data.join("\n"));
        if (lines.includes("event: error"))
          throw new Refused(message.error?.code ?? 0, message.error);
        yield message;
      }
    }
  } finally {
    document.removeEventListener("visibilitychange", hide);
    reader.cancel().catch(() => {});
  }
}

function wait(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      resolve();
    };
    const timer = setTimeout(done, ms);
    hurry = done;
    signal.addEventListener("abort", done, { once: true });
  });
}

function visible(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look, { once: true });
  });
}
