// Message parts of agents and callers as text: never as markup, and without loading foreign URLs.

import { copy, h } from "./dom.js";
import { count } from "./format.js";

/** A longer text is collapsed until the user expands it. */
const SHOWN_MAX = 20_000;
const SHORT_MAX = 160;

/** The text of all parts. */
export function textOf(parts) {
  return (parts ?? [])
    .map(
      (part) =>
        part.text ?? (part.data === undefined ? (part.url ?? "") : JSON.stringify(part.data)),
    )
    .filter(Boolean)
    .join("\n");
}

export function short(text) {
  const line = String(text ?? "")
    .replace(/\s+/g, " ")
    .trim();
  return line.length > SHORT_MAX ? `${line.slice(0, SHORT_MAX - 1)}…` : line;
}

function block(text) {
  const pre = h("pre", { tabindex: "0" }, text.slice(0, SHOWN_MAX));
  if (text.length <= SHOWN_MAX) return pre;
  const more = h(
    "button",
    { type: "button", class: "plain" },
    `Show all ${count(text.length)} characters`,
  );
  more.addEventListener("click", () => {
    pre.textContent = text;
    more.remove();
  });
  return h("div", null, pre, more);
}

function part(one) {
  if (one.text !== undefined) return block(one.text);
  if (one.data !== undefined) return block(JSON.stringify(one.data, null, 2));
  if (one.url !== undefined) return address(one.url);
  if (one.raw !== undefined) {
    const bytes = Math.floor((one.raw.length * 3) / 4);
    return h(
      "p",
      { class: "dim" },
      `${one.filename || "Binary"}, ${one.mediaType || "of unknown type"}, about ${count(bytes)} bytes`,
    );
  }
  return h("p", { class: "dim" }, "Nothing");
}

/** A foreign URL: a link only for http and https, without a referrer. */
export function address(text) {
  let url = null;
  try {
    url = new URL(text);
  } catch {
    // Not a URL: shown as text.
  }
  if (!url || !["https:", "http:"].includes(url.protocol)) return h("code", null, text);
  return h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, text);
}

/** Joins the chunks of an artifact into one text. */
function joined(parts) {
  const whole = [];
  for (const one of parts ?? []) {
    const last = whole.at(-1);
    const isPiece = last?.text !== undefined && one.text !== undefined;
    if (isPiece && last.mediaType === one.mediaType && !one.filename) last.text += one.text;
    else whole.push({ ...one });
  }
  return whole;
}

export function artifacts(all) {
  const items = all.map((artifact) => {
    const parts = joined(artifact.parts);
    const text = textOf(parts);
    return h(
      "article",
      { class: "artifact" },
      h(
        "h3",
        null,
        artifact.name || artifact.artifactId,
        " ",
        h(
          "small",
          { class: "dim" },
          [...new Set(parts.map((one) => one.mediaType).filter(Boolean))].join(", "),
        ),
        text ? copy(text, "it") : null,
      ),
      artifact.description ? h("p", { class: "dim" }, artifact.description) : null,
      ...parts.map(part),
    );
  });
  return h(
    "section",
    { class: "panel", "aria-label": "Artifacts" },
    h("h2", null, "Artifacts ", h("small", { class: "dim" }, all.length)),
    ...items,
  );
}

const ROLES = { ROLE_USER: "Caller", ROLE_AGENT: "Agent" };

export function conversation(messages) {
  const items = messages.map((message) =>
    h(
      "li",
      { "data-role": message.role === "ROLE_USER" ? "user" : "agent" },
      h("strong", null, ROLES[message.role] ?? "Somebody"),
      ...(message.parts ?? []).map(part),
    ),
  );
  return h(
    "section",
    { class: "panel", "aria-label": "Messages" },
    h("h2", null, "Messages ", h("small", { class: "dim" }, messages.length)),
    h("ol", { class: "messages" }, ...items),
  );
}
