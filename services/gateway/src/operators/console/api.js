// Everything that is asked of the gateway: calls, the stream of changes, and who asks. It knows no
// page. The token is kept for as long as the tab is open, and goes nowhere but to this gateway.

const TOKEN = "faultline.token";
const PAUSES_MS = [500, 1000, 2000, 4000, 8000, 15_000];

/** The gateway said no, and why. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The gateway answered ${status}.`);
    this.status = status;
    const details = Array.isArray(error?.details) ? error.details : [];
    const of = (name) => details.find((detail) => String(detail["@type"]).endsWith(name));
    this.reason = of("google.rpc.ErrorInfo")?.reason ?? "";
    this.violations = of("google.rpc.BadRequest")?.fieldViolations ?? [];
  }

  /** Asking again may help. */
  get passes() {
    return this.status === 503 || this.status === 502 || this.status === 504 || this.status === 429;
  }
}

/** Nobody answered. */
export class Lost extends Error {}

let token = sessionStorage.getItem(TOKEN);
export const hasToken = () => Boolean(token);

export function setToken(value) {
  token = value;
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

/** How to ask somebody for a token; the frame knows. Returns when one was given. */
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

/** One method of the operators' view. */
export async function call(method, body = {}, signal) {
  return read(
    await request(`../mesh/${method}`, { method: "POST", body: JSON.stringify(body), signal }),
  );
}

/** One of the console's own files. */
export async function load(name) {
  return read(await request(name, { method: "GET" }));
}

/** Who wants to know whether changes arrive: `live`, or `lost` with when it is tried again. */
let reportLink = () => {};
export const onLink = (report) => (reportLink = report);
let hurry = () => {};
/** Tries again at once. */
export const reconnect = () => hurry();

/**
 * Follows what changes, for as long as `signal` says, whatever happens to the connection.
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

/** The messages of a stream of server-sent events. */
async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  // Nobody looks at a hidden page, so nothing is sent to it.
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
