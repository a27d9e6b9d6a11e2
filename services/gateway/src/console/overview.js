// The mesh at a glance: who is offered, who is attached, what waits and what fails. Everything is
// read again when something changes, but not more than once a second, and every ten seconds anyway:
// workers come and go without a task changing.

import { call, follow, Lost } from "./api.js";
import { command, empty, h, keyed, put, set } from "./dom.js";
import {
  GROUPS,
  badge,
  brief,
  count,
  millis,
  pause,
  plural,
  setSince,
  since,
  sum,
} from "./format.js";
import { named } from "./reasons.js";
import { spark } from "./spark.js";

const HOUR_MS = 3_600_000;
const BUCKET_MS = 60_000;
const SOONEST_MS = 1000;
const ANYWAY_MS = 10_000;
const LISTED = 6;

export const title = () => "Overview";

export function mount(main, { signal }) {
  const view = draw(main);
  let timer = 0;
  let busy = false;
  let again = false;
  let last = 0;

  async function refresh() {
    clearTimeout(timer);
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    again = false;
    last = Date.now();
    try {
      view.show(await read(signal));
    } catch (error) {
      if (!signal.aborted && !(error instanceof Lost) && !error.passes) view.fail(error);
    }
    busy = false;
    if (signal.aborted) return;
    timer = setTimeout(refresh, again ? SOONEST_MS : ANYWAY_MS);
  }
  const soon = () => {
    if (busy) {
      again = true;
      return;
    }
    clearTimeout(timer);
    timer = setTimeout(refresh, Math.max(0, last + SOONEST_MS - Date.now()));
  };
  signal.addEventListener("abort", () => clearTimeout(timer));
  refresh();
  follow({}, { opened: soon, changed: soon }, signal);
}

async function read(signal) {
  const from = new Date(
    Math.floor((Date.now() - HOUR_MS) / BUCKET_MS + 1) * BUCKET_MS,
  ).toISOString();
  const [agents, workers, activity, failures, waiting] = await Promise.all([
    call("Agents", {}, signal),
    call("Workers", {}, signal),
    call("Activity", { from, bucketMs: BUCKET_MS }, signal),
    call("Failures", { from, bucketMs: BUCKET_MS }, signal),
    call("Tasks", { filter: { states: GROUPS.waiting, roots: true }, pageSize: LISTED }, signal),
  ]);
  const by = new Map((activity.agents ?? []).map((one) => [one.agent, one]));
  return {
    agents: (agents.agents ?? []).map((agent) => ({
      ...agent,
      activity: by.get(agent.name) ?? {},
    })),
    workers: workers.workers ?? [],
    activity: activity.agents ?? [],
    failures: failures.failures ?? [],
    waiting: waiting.tasks ?? [],
    moreWaiting: Boolean(waiting.nextPageToken),
  };
}

function draw(main) {
  const stats = h("section", { class: "stats", "aria-label": "Now" });
  const tile = (name, href) => {
    const value = h("b", null, "–");
    const more = h("small", null, "\u00a0");
    stats.append(
      h(href ? "a" : "div", { class: "stat", href }, h("span", null, name), value, more),
    );
    return { value, more, el: stats.lastChild };
  };
  const tiles = {
    computing: tile("Computing", "#/tasks?state=working"),
    queued: tile("Queued", "#/tasks?state=working"),
    waiting: tile("Waiting for somebody", "#/tasks?state=waiting"),
    failed: tile("Failed, last hour", "#/tasks?state=failed&since=1h"),
    started: tile("Started, last hour"),
  };
  const rate = spark("Last hour", true);
  tiles.started.el.append(rate.el);
  const agents = table(
    "Agents",
    ["Agent", "Health", "Workers", "Queued", "Computing", "Waiting", "Last hour"],
    "agents",
  );
  const workers = table("Workers", ["Worker", "State", "Slots", "Agents", "Since"], "workers");
  const waiting = panel("Needs somebody");
  const failing = panel("Fails most, last hour");
  main.append(
    h("h1", { class: "unseen" }, "Overview"),
    stats,
    h(
      "div",
      { class: "columns" },
      h("div", { class: "stack" }, agents.el, workers.el),
      h("div", { class: "stack side" }, waiting.el, failing.el),
    ),
  );
  const body = main.lastChild;
  const fields = { tiles, rate, agents, workers, waiting, failing };
  return {
    show: (data) => {
      body.classList.add("ready");
      show(fields, data);
    },
    fail: (error) => body.replaceChildren(empty("This cannot be shown", error.message)),
  };
}

function table(name, columns, kind) {
  const rows = h("tbody");
  const head = h(
    "tr",
    null,
    ...columns.map((column) =>
      h("th", { scope: "col", class: `c-${column.split(/\W/)[0].toLowerCase()}` }, column),
    ),
  );
  const inside = h(
    "div",
    { class: "scroll" },
    h("table", { class: kind }, h("thead", null, head), rows),
  );
  const tally = h("small", { class: "dim" });
  const el = h(
    "section",
    { class: "panel", "aria-label": name },
    h("h2", null, name, " ", tally),
    inside,
  );
  return { el, rows, inside, tally };
}

function panel(name) {
  const list = h("ul", { class: "list" });
  const el = h("section", { class: "panel", "aria-label": name }, h("h2", null, name), list);
  return { el, list };
}

function show({ tiles, rate, agents, workers, waiting, failing }, data) {
  const started = add(data.activity.map((one) => one.submitted));
  const failed = add(data.activity.map((one) => one.failed));
  const total = (field) => sum(data.agents.map((agent) => agent[field] ?? 0));
  const attached = data.workers.filter((worker) => worker.attached);
  const slots = sum(attached.map((worker) => worker.slots ?? 0));
  put(tiles.computing.value, count(total("computing")));
  put(
    tiles.computing.more,
    slots ? `of ${plural(slots, "slot", "slots")}` : "no slot: no worker is attached",
  );
  put(tiles.queued.value, count(total("queued")));
  put(tiles.queued.more, total("queued") ? "for a free slot" : "nothing waits for a slot");
  put(tiles.waiting.value, count(total("waiting")));
  put(tiles.waiting.more, total("waiting") ? "for an answer" : "nobody is asked");
  put(tiles.failed.value, count(sum(failed)));
  const reasons = new Set(data.failures.map((one) => one.reason)).size;
  put(
    tiles.failed.more,
    sum(failed) ? `for ${plural(reasons, "reason", "reasons")}` : "nothing failed",
  );
  put(tiles.started.value, count(sum(started)));
  put(tiles.started.more, `${perMinute(started)} a minute`);
  set(tiles.queued.el, "data-tone", total("queued") > 0 && slots === 0 ? "bad" : null);
  set(tiles.waiting.el, "data-tone", total("waiting") ? "wait" : null);
  set(tiles.failed.el, "data-tone", sum(failed) ? "bad" : null);
  rate.update(started, failed);

  put(agents.tally, data.agents.length || "");
  put(workers.tally, data.workers.length || "");
  fill(
    agents,
    data.agents,
    (agent) => agent.name,
    agentRow,
    () =>
      empty(
        "No agent was ever offered here",
        "Agents come with their workers. Start one:",
        command("faultline worker --agents echo,script"),
      ),
  );
  fill(
    workers,
    data.workers,
    (worker) => worker.id,
    workerRow,
    () =>
      empty(
        "No worker is attached",
        "Tasks wait until one is. Start one:",
        command("faultline worker --agents echo,script"),
      ),
  );
  const none = (text) => [{ none: text }];
  keyed(
    waiting.list,
    data.waiting.length ? data.waiting : none("Nobody is asked anything."),
    (one) => one.taskId ?? "none",
    waitingRow,
  );
  const top = data.failures.slice(0, LISTED);
  keyed(
    failing.list,
    top.length ? top : none("Nothing failed."),
    (one) => (one.none ? "none" : `${one.reason} ${one.origin}`),
    failingRow,
  );
}

function fill(table, items, key, make, none) {
  table.none?.remove();
  table.inside.hidden = items.length === 0;
  keyed(table.rows, items, key, make);
  if (items.length > 0) return;
  table.none = none();
  table.el.append(table.none);
}

function add(rows) {
  const length = Math.max(0, ...rows.map((row) => row?.length ?? 0));
  return Array.from({ length }, (_, at) => sum(rows.map((row) => row?.[at] ?? 0)));
}

/** Of the last five whole minutes. */
function perMinute(values) {
  const last = values.slice(-6, -1);
  const mean = last.length ? sum(last) / last.length : 0;
  return mean > 0 && mean < 10 ? mean.toFixed(1) : count(Math.round(mean));
}

/** What can be said of an agent in two words, and how bad it is. */
function health(agent) {
  const about = agent.health ?? {};
  if (about.circuit === "CIRCUIT_OPEN") {
    const left = millis(about.openUntil) - Date.now();
    return {
      tone: "bad",
      text: left > 0 ? `circuit open, ${pause(Math.ceil(left / 1000) * 1000)}` : "circuit open",
    };
  }
  if (about.circuit === "CIRCUIT_HALF_OPEN") return { tone: "wait", text: "circuit half open" };
  if (!agent.workers) return { tone: agent.queued ? "bad" : "off", text: "no worker" };
  if (about.consecutiveFailures)
    return {
      tone: "wait",
      text: plural(about.consecutiveFailures, "failure in a row", "failures in a row"),
    };
  return { tone: "good", text: "well" };
}

function agentRow(agent) {
  const href = `#/tasks?agent=${encodeURIComponent(agent.name)}`;
  const mark = h("span", { class: "state" }, h("i", { "aria-hidden": "true" }), h("span"));
  const cells = ["workers", "queued", "computing", "waiting"].map((name) =>
    h("td", { class: "n", "data-name": name }),
  );
  const bars = spark(`${agent.name}, last hour`);
  const failed = h("a", { class: "failed", href: `${href}&state=failed&since=1h` });
  const started = h("span", { class: "n" });
  const name = h("a", { href, "data-row": true }, agent.name);
  const root = h(
    "small",
    { class: "tag", title: "Serves the root, with no agent named" },
    "default",
  );
  const el = h(
    "tr",
    null,
    h("td", null, name, " ", root),
    h("td", null, mark),
    ...cells,
    h("td", { class: "rate" }, h("div", null, bars.el, started, failed)),
  );
  return {
    el,
    update(now) {
      const { tone, text } = health(now);
      mark.dataset.tone = tone;
      put(mark.lastChild, text);
      root.hidden = !now.isDefault;
      for (const cell of cells) {
        const value = now[cell.dataset.name] ?? 0;
        put(cell, count(value));
        set(cell, "data-zero", value === 0 ? "" : null);
      }
      bars.update(now.activity.submitted, now.activity.failed);
      put(started, count(sum(now.activity.submitted)));
      const bad = sum(now.activity.failed);
      put(failed, bad ? `${count(bad)} failed` : "");
    },
  };
}

function workerRow(worker) {
  const mark = h("span", { class: "state" }, h("i", { "aria-hidden": "true" }), h("span"));
  const used = h("span", { class: "n" });
  const meter = h("meter", { min: "0", "aria-label": "Slots in use" });
  const agents = h("td", { class: "chips" });
  const at = since(worker.since);
  const el = h(
    "tr",
    null,
    h(
      "td",
      null,
      h(
        "span",
        { title: worker.id, tabindex: "-1", "data-row": true },
        worker.name || brief(worker.id),
      ),
    ),
    h("td", null, mark),
    h("td", { class: "slots" }, h("div", null, meter, used)),
    agents,
    h("td", null, at),
  );
  return {
    el,
    update(now) {
      const [tone, text] = !now.attached
        ? ["bad", "away"]
        : now.draining
          ? ["wait", "draining"]
          : ["good", "attached"];
      mark.dataset.tone = now.orphans ? "wait" : tone;
      put(
        mark.lastChild,
        now.orphans ? `${text}, ${plural(now.orphans, "orphan", "orphans")}` : text,
      );
      meter.max = now.slots || 1;
      meter.value = now.used ?? 0;
      put(used, `${count(now.used)} / ${count(now.slots)}`);
      put(agents, (now.agents ?? []).join(", "));
      agents.title = (now.agents ?? []).join(", ");
      setSince(at, now.since);
    },
  };
}

function waitingRow(task) {
  if (task.none) return { el: h("li", { class: "none" }, task.none) };
  const mark = badge(task.state);
  return {
    el: h(
      "li",
      null,
      h(
        "a",
        { href: `#/task/${encodeURIComponent(task.taskId)}`, "data-row": true },
        h(
          "span",
          { class: "grow" },
          h("strong", null, task.agent),
          h("small", { class: "dim" }, task.principal),
        ),
        mark,
        since(task.changed),
      ),
    ),
  };
}

function failingRow(failure) {
  if (failure.none) return { el: h("li", { class: "none" }, failure.none) };
  const bars = spark("Last hour");
  const tasks = h("b", { class: "n" });
  const query = new URLSearchParams({
    state: "failed",
    reason: failure.reason,
    origin: failure.origin ?? "",
    since: "1h",
  });
  return {
    el: h(
      "li",
      null,
      h(
        "a",
        { href: `#/tasks?${query}`, "data-row": true, title: named(failure.reason)?.help },
        h(
          "span",
          { class: "grow" },
          h("strong", { class: "reason" }, failure.reason),
          h("small", { class: "dim" }, "in ", failure.origin || "the mesh"),
        ),
        bars.el,
        tasks,
      ),
    ),
    update(now) {
      bars.update([], now.buckets);
      put(tasks, count(now.tasks));
    },
  };
}
