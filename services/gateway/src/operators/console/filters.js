// The filter of a list of tasks. It is stored in the address of the page only.

import { h } from "./dom.js";
import { GROUPS, millis } from "./format.js";
import { reasons } from "./reasons.js";

export const SPANS = {
  "15m": ["last 15 minutes", 900_000],
  "1h": ["last hour", 3_600_000],
  "6h": ["last 6 hours", 21_600_000],
  "24h": ["last 24 hours", 86_400_000],
  "7d": ["last 7 days", 604_800_000],
};
const STATE_WORDS = {
  working: "working",
  waiting: "waiting",
  failed: "failed",
  completed: "completed",
  stopped: "canceled or rejected",
};
const TEXTS = ["agent", "reason", "origin", "principal"];
const KNOWN = ["state", ...TEXTS, "since", "from", "to", "roots"];

/** Only fields with a meaning, in a fixed order: the same filter gives the same address. */
export function read(params) {
  const filter = {};
  for (const name of KNOWN) {
    const value = params.get(name)?.trim();
    if (value) filter[name] = value;
  }
  if (!Object.hasOwn(GROUPS, filter.state)) delete filter.state;
  if (!Object.hasOwn(SPANS, filter.since)) delete filter.since;
  for (const end of ["from", "to"]) if (!Number.isFinite(millis(filter[end]))) delete filter[end];
  if (filter.roots !== "1") delete filter.roots;
  return filter;
}

export const address = (filter) => {
  const query = new URLSearchParams(filter).toString();
  return query ? `#/tasks?${query}` : "#/tasks";
};

/** The filter in the format of the API. */
export function request(filter) {
  const { agent, reason, origin, principal } = filter;
  const asked = { agent, reason, origin, principal };
  if (filter.state) asked.states = GROUPS[filter.state];
  if (filter.since) asked.from = new Date(Date.now() - SPANS[filter.since][1]).toISOString();
  if (filter.from) asked.from = new Date(millis(filter.from)).toISOString();
  if (filter.to) asked.to = new Date(millis(filter.to)).toISOString();
  if (filter.roots) asked.roots = true;
  return asked;
}

/** The form of a filter; `changed(filter)` is called on every change. */
export function bar(changed) {
  const fields = {};
  const field = (name, label, element) => {
    fields[name] = element;
    element.setAttribute("aria-label", label);
    return h(
      "label",
      { class: `field f-${name}` },
      h("span", { "aria-hidden": "true" }, label),
      element,
    );
  };
  const options = (any, entries) => [
    h("option", { value: "" }, any),
    ...entries.map(([value, word]) => h("option", { value }, word)),
  ];
  const list = (id) => h("datalist", { id });
  const [agents, known] = [list("agents"), list("reasons")];
  known.append(...reasons().map((row) => h("option", { value: row.name })));
  const text = (name, label, id, hint) =>
    field(
      name,
      label,
      h("input", {
        type: "text",
        list: id,
        placeholder: hint,
        autocomplete: "off",
        spellcheck: "false",
        maxlength: "200",
        "data-filter": name === "agent" ? "" : null,
      }),
    );
  const clear = h("button", { type: "button", class: "plain", hidden: true }, "Clear");
  const between = h("button", {
    type: "button",
    class: "plain window",
    hidden: true,
    title: "Any time again",
  });
  const el = h(
    "form",
    { class: "filters", role: "search", "aria-label": "Filter tasks" },
    field("state", "State", h("select", null, ...options("any", Object.entries(STATE_WORDS)))),
    text("agent", "Agent", "agents", "any"),
    text("reason", "Reason", "reasons", "any"),
    text("origin", "Born in", "agents", "any"),
    text("principal", "Principal", null, "any"),
    field(
      "since",
      "Changed",
      h(
        "select",
        null,
        ...options(
          "any time",
          Object.entries(SPANS).map(([key, [word]]) => [key, word]),
        ),
      ),
    ),
    h(
      "label",
      { class: "field check" },
      (fields.roots = h("input", { type: "checkbox" })),
      h("span", null, "roots only"),
    ),
    between,
    clear,
    agents,
    known,
  );

  let current = {};
  let typing = 0;
  const tell = () => {
    clearTimeout(typing);
    // No callback after the user has left the page.
    if (!el.isConnected) return;
    const next = { ...current };
    for (const name of ["state", ...TEXTS, "since"]) next[name] = fields[name].value.trim();
    next.roots = fields.roots.checked ? "1" : "";
    // Choosing another period clears a custom one.
    if (next.since) next.from = next.to = "";
    changed(read(new URLSearchParams(next)));
  };
  el.addEventListener("submit", (event) => event.preventDefault());
  el.addEventListener("change", tell);
  el.addEventListener("input", (event) => {
    clearTimeout(typing);
    if (event.target.type === "text") typing = setTimeout(tell, 250);
  });
  clear.addEventListener("click", () => changed({}));
  between.addEventListener("click", () => {
    const { from, to, ...rest } = current;
    changed(rest);
  });
  return {
    el,
    show(filter, tellTime) {
      current = filter;
      for (const name of ["state", ...TEXTS, "since"]) {
        const element = fields[name];
        if (element !== document.activeElement || element.tagName === "SELECT")
          element.value = filter[name] ?? "";
        element.closest(".field").classList.toggle("set", Boolean(filter[name]));
      }
      fields.roots.checked = filter.roots === "1";
      clear.hidden = Object.keys(filter).length === 0;
      between.hidden = !filter.from && !filter.to;
      const end = (time, open) => (time ? tellTime(millis(time)) : open);
      between.textContent = `${end(filter.from, "…")} – ${end(filter.to, "now")} ×`;
    },
    offer(names) {
      agents.replaceChildren(...names.map((name) => h("option", { value: name })));
    },
  };
}
