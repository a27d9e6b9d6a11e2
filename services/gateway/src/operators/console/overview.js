// The overview page: agents, workers, waiting tasks and failures. Everything is read again after a
// change, at most once a second, and every ten seconds anyway, because workers come and go without
// changing a task.

import { call, follow, Lost } from "./api.js";
import { command, empty, h, keyed, put, set } from "./dom.js";
import { GROUPS, count, plural, sum } from "./format.js";
import { agentRow, failingRow, waitingRow, workerRow } from "./rows.js";
import { spark } from "./spark.js";

const HOUR_MS = 3_600_000;
const BUCKET_MS = 60_000;
const SOONEST_MS = 1000;
const ANYWAY_MS = 10_000;
const COUNTED_MS = 4000;
const LISTED = 6;

export const title = () => "Overview";

export function mount(main, { signal }) {
  const view = draw(main);
  const read = reader(signal);
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
      view.show(await read());
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

/** Reads everything. Counts over time are expensive and may be a few seconds old. */
function reader(signal) {
  let counted = null;
  const countAgain = async () => {
    const first = Math.floor((Date.now() - HOUR_MS) / BUCKET_MS + 1) * BUCKET_MS;
    const asked = { from: new Date(first).toISOString(), bucketMs: BUCKET_MS };
    const asking = [call("Activity", asked, signal), call("Failures", asked, signal)];
    const [activity, failures] = await Promise.all(asking);
    counted = {
      at: Date.now(),
      activity: activity.agents ?? [],
      failures: failures.failures ?? [],
    };
  };
  return async () => {
    const asks = { states: GROUPS.waiting, roots: true };
    const [agents, workers, waiting] = await Promise.all([
      call("Agents", {}, signal),
      call("Workers", {}, signal),
      call("Tasks", { filter: asks, pageSize: LISTED }, signal),
      counted && Date.now() - counted.at < COUNTED_MS ? null : countAgain(),
    ]);
    const by = new Map(counted.activity.map((one) => [one.agent, one]));
    const withNumbers = (agent) => ({ ...agent, activity: by.get(agent.name) ?? {} });
    return {
      ...counted,
      agents: (agents.agents ?? []).map(withNumbers),
      workers: workers.workers ?? [],
      waiting: waiting.tasks ?? [],
    };
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

/** The rate of the last five full minutes. */
function perMinute(values) {
  const last = values.slice(-6, -1);
  const mean = last.length ? sum(last) / last.length : 0;
  return mean > 0 && mean < 10 ? mean.toFixed(1) : count(Math.round(mean));
}
