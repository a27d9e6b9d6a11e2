// The failures page: reasons, origins and counts over time. Each line links to its tasks.

import { call, follow, Lost } from "./api.js";
import { empty, h } from "./dom.js";
import { SPANS } from "./filters.js";
import { GROUPS, brief, count, millis, plural, since, sum } from "./format.js";
import { named } from "./reasons.js";
import { chart, spark } from "./spark.js";

const BUCKETS = 60;
const SOONEST_MS = 2000;
const ANYWAY_MS = 15_000;
/** The number of reasons with a colour of their own; the others share one. */
const COLOURS = 5;

export const title = () => "Failures";

export function mount(main, { params, signal }) {
  const page = new Page(main, signal);
  page.turn(params);
  let timer = 0;
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(
      async () => {
        await page.read();
        if (!signal.aborted) timer = setTimeout(soon, ANYWAY_MS);
      },
      Math.max(0, page.last + SOONEST_MS - Date.now()),
    );
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  const changed = (news) => (news.missed || news.tasks?.length) && soon();
  follow({ states: GROUPS.failed }, { opened: soon, changed }, signal);
  return { update: (next) => page.turn(next) };
}

class Page {
  constructor(main, signal) {
    this.signal = signal;
    this.last = 0;
    this.choice = h(
      "select",
      {
        "aria-label": "Time",
        "data-filter": true,
        onchange: () => (location.hash = `#/failures?since=${this.choice.value}`),
      },
      ...Object.entries(SPANS).map(([key, [word]]) => h("option", { value: key }, word)),
    );
    this.told = h("p", { class: "tally", role: "status" });
    this.body = h("div", { class: "stack" });
    main.append(
      h("h1", { class: "unseen" }, "Failures"),
      h(
        "div",
        { class: "filters" },
        h("label", { class: "field" }, h("span", { "aria-hidden": "true" }, "Ended"), this.choice),
        this.told,
      ),
      this.body,
    );
  }

  turn(params) {
    const wanted = params.get("since");
    this.since = Object.hasOwn(SPANS, wanted) ? wanted : "24h";
    this.choice.value = this.since;
    this.read();
  }

  async read() {
    const { since: key, signal } = this;
    this.last = Date.now();
    const bucketMs = Math.round(SPANS[key][1] / BUCKETS);
    const from = Math.ceil((Date.now() - SPANS[key][1]) / bucketMs) * bucketMs;
    try {
      const answer = await call(
        "Failures",
        { from: new Date(from).toISOString(), bucketMs },
        signal,
      );
      if (key === this.since)
        this.show(answer.failures ?? [], millis(answer.from) || from, answer.bucketMs || bucketMs);
    } catch (error) {
      if (!signal.aborted && !(error instanceof Lost) && !error.passes)
        this.body.replaceChildren(empty("This cannot be shown", error.message));
    }
  }

  show(failures, from, bucketMs) {
    this.from = new Date(from).toISOString();
    const focus = document.activeElement?.dataset?.key;
    if (failures.length === 0) {
      this.told.textContent = "";
      this.body.replaceChildren(
        empty("Nothing failed", `No task failed in the ${SPANS[this.since][0]}.`),
      );
      return;
    }
    const tasks = sum(failures.map((one) => one.tasks ?? 0));
    this.told.textContent = `${plural(sum(failures.map((one) => one.failures ?? 0)), "failure", "failures")} ended ${plural(tasks, "task", "tasks")}`;
    const reasons = group(failures, "reason");
    const tone = new Map(reasons.slice(0, COLOURS).map((one, at) => [one.name, at + 1]));
    const toneOf = (name) => tone.get(name) ?? 0;
    const series = [
      ...reasons
        .slice(0, COLOURS)
        .map((one) => ({ name: one.name, tone: toneOf(one.name), values: one.buckets })),
    ];
    if (reasons.length > COLOURS)
      series.push({
        name: "other",
        tone: 0,
        values: add(reasons.slice(COLOURS).map((one) => one.buckets)),
      });
    const between = (start, end) =>
      `#/tasks?${new URLSearchParams({ state: "failed", from: new Date(start).toISOString(), to: new Date(end).toISOString() })}`;
    this.body.replaceChildren(
      h(
        "section",
        { class: "panel", "aria-label": "Over time" },
        chart({
          series,
          from,
          bucketMs,
          href: between,
          label: `Failed tasks, ${SPANS[this.since][0]}`,
        }),
      ),
      h(
        "div",
        { class: "halves" },
        this.ranking("Root reasons", reasons, "reason", toneOf),
        this.ranking("Born in", group(failures, "origin"), "origin", () => null),
      ),
      this.pairs(failures, toneOf),
    );
    if (focus) this.body.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus();
  }

  /** The filter for exactly the tasks that were counted. */
  to(filter) {
    return `#/tasks?${new URLSearchParams({ state: "failed", ...filter, from: this.from })}`;
  }

  ranking(name, all, field, tone) {
    const most = Math.max(1, ...all.map((one) => one.tasks));
    const rows = all.slice(0, 8).map((one) => {
      const known = field === "reason" ? named(one.name) : null;
      const length = h("meter", {
        min: "0",
        max: most,
        value: one.tasks,
        "aria-hidden": "true",
        "data-series": tone(one.name),
      });
      return h(
        "li",
        null,
        h(
          "a",
          {
            href: this.to({ [field]: one.name }),
            "data-row": true,
            "data-key": `${field} ${one.name}`,
            title: known?.help,
          },
          h(
            "span",
            { class: "rank-name" },
            field === "reason"
              ? h("span", { class: "reason" }, one.name)
              : h("strong", null, one.name || "the mesh"),
            known ? h("small", { class: "dim" }, known.title) : null,
          ),
          length,
          h("b", { class: "n" }, count(one.tasks)),
        ),
      );
    });
    return h(
      "section",
      { class: "panel", "aria-label": name },
      h("h2", null, name),
      h("ol", { class: "ranking" }, ...rows),
    );
  }

  pairs(failures, tone) {
    const rows = failures.map((one) => {
      const bars = spark(`${one.reason} in ${one.origin}`);
      bars.update([], one.buckets);
      return h(
        "tr",
        null,
        h(
          "td",
          null,
          h("i", { class: "swatch", "data-series": tone(one.reason), "aria-hidden": "true" }),
          h(
            "a",
            {
              class: "reason",
              href: this.to({ reason: one.reason, origin: one.origin ?? "" }),
              "data-row": true,
              "data-key": `${one.reason}/${one.origin}`,
            },
            one.reason,
          ),
        ),
        h("td", null, one.origin || "the mesh"),
        h("td", { class: "n" }, count(one.failures)),
        h("td", { class: "n" }, count(one.tasks)),
        h("td", { class: "rate" }, bars.el),
        h(
          "td",
          null,
          h(
            "a",
            { href: `#/task/${encodeURIComponent(one.lastTaskId)}`, title: brief(one.lastTaskId) },
            since(one.last),
          ),
        ),
      );
    });
    const heads = [
      ["Root reason", ""],
      ["Born in", ""],
      ["Failures", "n"],
      ["Tasks", "n"],
      ["Over time", "rate"],
      ["Last", ""],
    ];
    return h(
      "section",
      { class: "panel", "aria-label": "Reasons and origins" },
      h("h2", null, "Reasons and origins ", h("small", { class: "dim" }, failures.length)),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "pairs" },
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              ...heads.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)),
            ),
          ),
          h("tbody", null, ...rows),
        ),
      ),
    );
  }
}

function add(rows) {
  const length = Math.max(0, ...rows.map((row) => row.length));
  return Array.from({ length }, (_, at) => sum(rows.map((row) => row[at] ?? 0)));
}

/** Groups failures by one field, the most frequent first. */
function group(failures, field) {
  const groups = new Map();
  for (const one of failures) {
    const name = one[field] ?? "";
    const sofar = groups.get(name) ?? { name, tasks: 0, buckets: [] };
    sofar.tasks += one.tasks ?? 0;
    sofar.buckets = add([sofar.buckets, one.buckets ?? []]);
    groups.set(name, sofar);
  }
  return [...groups.values()].sort((a, b) => b.tasks - a.tasks);
}
