// Formats numbers, times and states for readers. Pure, except for the clock.

import { h, put } from "./dom.js";

/** Each state: label, style, and whether it is terminal. */
const STATES = {
  TASK_STATE_SUBMITTED: { word: "submitted", tone: "idle" },
  TASK_STATE_WORKING: { word: "working", tone: "run" },
  TASK_STATE_INPUT_REQUIRED: { word: "asks for input", tone: "wait" },
  TASK_STATE_AUTH_REQUIRED: { word: "asks for a login", tone: "wait" },
  TASK_STATE_COMPLETED: { word: "completed", tone: "good", final: true },
  TASK_STATE_FAILED: { word: "failed", tone: "bad", final: true },
  TASK_STATE_REJECTED: { word: "rejected", tone: "off", final: true },
  TASK_STATE_CANCELED: { word: "canceled", tone: "off", final: true },
};

/** The groups of states in filters. */
export const GROUPS = {
  working: ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"],
  waiting: ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"],
  failed: ["TASK_STATE_FAILED"],
  completed: ["TASK_STATE_COMPLETED"],
  stopped: ["TASK_STATE_CANCELED", "TASK_STATE_REJECTED"],
};

export function state(name) {
  return STATES[name] ?? { word: "unknown", tone: "idle" };
}

export const isFinal = (name) => state(name).final === true;
export const isWaiting = (name) => state(name).tone === "wait";

/** A state as a coloured mark with a label. */
export function badge(name) {
  const { word, tone } = state(name);
  return h(
    "span",
    { class: "state", "data-tone": tone },
    h("i", { "aria-hidden": "true" }),
    h("span", null, word),
  );
}

export function setBadge(element, name) {
  const { word, tone } = state(name);
  element.dataset.tone = tone;
  put(element.lastChild, word);
}

const number = new Intl.NumberFormat("en");
export const count = (value) => number.format(value ?? 0);
export const plural = (value, one, many) => `${count(value)} ${value === 1 ? one : many}`;
export const sum = (values) => (values ?? []).reduce((total, value) => total + value, 0);

export const millis = (time) => (time ? Date.parse(time) : NaN);

/** The shortest text of a duration. */
export function span(ms) {
  if (!Number.isFinite(ms)) return "";
  if (ms < 0) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 9_950 ? 2 : 1)} s`;
  const parts = [
    ["d", 86_400_000],
    ["h", 3_600_000],
    ["min", 60_000],
    ["s", 1000],
  ];
  let rest = Math.round(ms / 1000) * 1000;
  const said = [];
  for (const [unit, size] of parts) {
    const whole = Math.floor(rest / size);
    rest -= whole * size;
    if (whole > 0 || said.length > 0) said.push(`${whole} ${unit}`);
    if (said.length === 2) break;
  }
  return said.filter((one) => !one.startsWith("0 ")).join(" ");
}

/** A duration without trailing zeros, for configured values. */
export const pause = (ms) => span(ms).replace(/\.0+ /, " ");

/** The time since an event, in one unit. */
function ago(ms, now = Date.now()) {
  const past = now - ms;
  if (!Number.isFinite(past)) return "";
  if (past < 0) return past < -1000 ? `in ${pause(Math.ceil(-past / 1000) * 1000)}` : "now";
  if (past < 5000) return "now";
  for (const [unit, size] of [
    ["d", 86_400_000],
    ["h", 3_600_000],
    ["min", 60_000],
    ["s", 1000],
  ]) {
    if (past >= size) return `${Math.floor(past / size)} ${unit} ago`;
  }
  return "now";
}

const absolute = new Intl.DateTimeFormat("en-GB", {
  year: "numeric",
  month: "short",
  day: "2-digit",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
  timeZoneName: "short",
});
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const clockSeconds = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
});
const day = new Intl.DateTimeFormat("en-GB", {
  day: "2-digit",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
});

export const when = (ms) => (Number.isFinite(ms) ? absolute.format(ms) : "");
export const hour = (ms) => clock.format(ms);
export const precise = (ms) => clockSeconds.format(ms);
export const date = (ms) => day.format(ms);

/** A relative time that keeps itself up to date; its title is the exact time. */
export function since(time) {
  return setSince(h("time", { "data-ago": true }), time);
}

export function setSince(element, time) {
  const ms = millis(time);
  if (!Number.isFinite(ms)) {
    element.removeAttribute("datetime");
    put(element, "");
    return element;
  }
  if (element.getAttribute("datetime") !== time) {
    element.setAttribute("datetime", time);
    element.title = when(ms);
  }
  put(element, ago(ms));
  return element;
}

/** Updates all relative times of the page. */
export function tick(root) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[data-ago][datetime]")) {
    put(element, ago(Date.parse(element.getAttribute("datetime")), now));
  }
  for (const element of root.querySelectorAll("[data-running]")) {
    put(element, span(Math.floor((now - Number(element.dataset.running)) / 1000) * 1000));
  }
}

/** A short form of an id with its end: ids begin with a time, so neighbours begin alike. */
export const brief = (id) =>
  id && id.length > 14 ? `${id.slice(0, 8)}…${id.slice(-4)}` : (id ?? "");
