// The list of all tasks, latest change first: loaded page by page while scrolling, with live
// updates. Changes that arrive while the user is further down are held back above, so that rows do
// not move.

import { call, follow, Lost } from "./api.js";
import { command, empty, h, put } from "./dom.js";
import {
  badge,
  brief,
  count,
  date,
  isFinal,
  millis,
  plural,
  setBadge,
  setSince,
  since,
  span,
} from "./format.js";
import * as filters from "./filters.js";
import { Grid } from "./grid.js";

const PAGE = 200;
const COLUMNS = [
  { key: "state", name: "State" },
  { key: "agent", name: "Agent" },
  { key: "why", name: "Reason" },
  { key: "principal", name: "Principal" },
  { key: "attempts", name: "Attempts" },
  { key: "took", name: "Took" },
  { key: "id", name: "Task" },
  { key: "changed", name: "Changed" },
];

/** The items, scroll position and selection of the list, to return to from a task. */
let kept = null;

/** The list that was shown last. */
let last = "#/tasks";
export const lastList = () => last;

export const title = () => "Tasks";

export function mount(main, { params, signal }) {
  const page = new Page(main, signal);
  page.turn(filters.read(params));
  return {
    update: (next) => page.turn(filters.read(next)),
    move: (step) => page.grid.move(step),
    open: () => page.grid.openActive(),
    leave: () => page.grid.select(-1),
  };
}

class Page {
  constructor(main, signal) {
    this.signal = signal;
    this.bar = filters.bar((filter) => (location.hash = filters.address(filter)));
    this.tally = h("p", { class: "tally", role: "status" });
    this.fresh = h("button", {
      type: "button",
      class: "fresh",
      hidden: true,
      onclick: () => this.showFresh(),
    });
    this.grid = new Grid({
      label: "Tasks",
      columns: COLUMNS,
      make: row,
      open: (task) => (location.hash = href(task)),
      near: () => this.more(),
    });
    this.body = h("div", { class: "grid-frame" }, this.grid.el, this.fresh);
    main.append(h("h1", { class: "unseen" }, "Tasks"), this.bar.el, this.tally, this.body);
    this.known = new Map();
    this.waiting = new Map();
    signal.addEventListener("abort", () => this.leave());
    call("Agents", {}, signal).then(
      (answer) => this.bar.offer((answer.agents ?? []).map((agent) => agent.name)),
      () => {},
    );
  }

  leave() {
    const { key, known, next, grid } = this;
    if (!this.loading)
      kept = { key, items: grid.items, known, next, top: grid.el.scrollTop, active: grid.active };
    this.turned?.abort();
    grid.close();
  }

  /** Applies a filter. Loads the list again, unless this filter was shown last. */
  turn(filter) {
    const key = filters.address(filter);
    last = key;
    this.bar.show(filter, date);
    if (this.key === key) return;
    this.turned?.abort();
    this.turned = new AbortController();
    const signal = AbortSignal.any([this.signal, this.turned.signal]);
    Object.assign(this, {
      key,
      filter,
      request: filters.request(filter),
      next: "",
      loading: false,
      behind: false,
      stalled: false,
      wrong: null,
    });
    this.turnSignal = signal;
    this.waiting.clear();
    this.grid.active = -1;
    const back = kept?.key === key ? kept : null;
    kept = null;
    this.known = back?.known ?? new Map();
    this.grid.items = back?.items ?? [];
    this.next = back?.next ?? "";
    this.complete = back ? !back.next : false;
    this.grid.measure();
    this.grid.el.scrollTop = back?.top ?? 0;
    if (back) this.grid.active = back.active;
    this.showFresh();
    if (!back) this.more();
    follow(
      this.request,
      { opened: () => this.catchUp(), changed: (news) => this.take(news) },
      signal,
    );
  }

  /** Loads the next page, unless there is none or one is loading. */
  async more() {
    if (this.loading || this.complete || this.stalled || this.wrong) return;
    const signal = this.turnSignal;
    this.loading = true;
    this.describe();
    try {
      const answer = await call(
        "Tasks",
        { filter: this.request, pageSize: PAGE, pageToken: this.next },
        signal,
      );
      this.next = answer.nextPageToken ?? "";
      this.complete = !this.next;
      for (const task of answer.tasks ?? []) {
        // A task that changed meanwhile is further up already.
        if (this.known.has(task.taskId)) continue;
        this.known.set(task.taskId, task);
        this.grid.items.push(task);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Lost) && !error.passes) this.wrong = error;
      // No retries before the stream is back.
      this.stalled = true;
    }
    if (signal !== this.turnSignal) return;
    this.loading = false;
    this.describe();
    this.grid.layout();
    if (this.behind) this.catchUp();
  }

  /** Loads changes that may have been missed while the stream was closed. */
  async catchUp() {
    this.stalled = false;
    // One page at a time: each begins where the last one ends.
    this.behind = this.loading;
    if (this.loading) return;
    const signal = this.turnSignal;
    this.loading = true;
    try {
      const answer = await call("Tasks", { filter: this.request, pageSize: PAGE }, signal);
      if (signal === this.turnSignal) this.merge(answer.tasks ?? [], answer.nextPageToken ?? "");
    } catch {
      // The stream reports that the mesh is unreachable, and reopens when it is back.
    }
    if (signal !== this.turnSignal) return;
    this.loading = false;
    this.describe();
    this.grid.draw();
  }

  /** Merges the current first page into the list. */
  merge(tasks, next) {
    if (tasks.some((task) => this.known.has(task.taskId))) {
      this.take({ tasks, gone: this.unlisted(tasks, !next) });
      return;
    }
    // No overlap: too much has changed, or the list is empty.
    this.known = new Map(tasks.map((task) => [task.taskId, task]));
    Object.assign(this, { next, complete: !next });
    this.waiting.clear();
    this.grid.replace(tasks);
  }

  /** The tasks that are missing from the first page: they no longer match the filter. */
  unlisted(first, areAll) {
    const listed = new Set(first.map((task) => task.taskId));
    const oldest = areAll ? -Infinity : millis(first.at(-1)?.changed);
    const missing = (task) => millis(task.changed) > oldest && !listed.has(task.taskId);
    return this.grid.items.filter(missing).map((task) => task.taskId);
  }

  take(news) {
    if (news.missed) {
      this.catchUp();
      return;
    }
    for (const task of news.tasks ?? []) {
      const old = this.known.get(task.taskId);
      if (old && same(old, task)) continue;
      if (old) {
        Object.assign(old, { reason: "", origin: "", failureId: "" }, task);
        this.grid.redraw(old);
      }
      this.waiting.set(task.taskId, old ?? task);
    }
    this.drop(news.gone ?? []);
    if (this.grid.atTop && this.grid.active < 0) this.showFresh();
    else this.describe();
  }

  /** Removes tasks that no longer match the filter. */
  drop(ids) {
    const listed = ids.map((id) => this.known.get(id)).filter(Boolean);
    for (const id of ids) {
      this.waiting.delete(id);
      this.known.delete(id);
    }
    if (listed.length === 0) return;
    const gone = new Set(listed);
    this.grid.replace(this.grid.items.filter((task) => !gone.has(task)));
  }

  /** Moves changed tasks to the top. */
  showFresh() {
    const fresh = [...this.waiting.values()].sort((a, b) => millis(b.changed) - millis(a.changed));
    this.waiting.clear();
    if (fresh.length > 0) {
      const moved = new Set(fresh.map((task) => task.taskId));
      const rest = this.grid.items.filter((task) => !moved.has(task.taskId));
      for (const task of fresh) this.known.set(task.taskId, task);
      this.grid.replace([...fresh, ...rest]);
      if (!this.grid.atTop) this.grid.el.scrollTop = 0;
    }
    this.describe();
  }

  /** The number of tasks, or the reason for an empty list. */
  describe() {
    const { grid, loading, complete } = this;
    const shown = grid.items.length;
    this.fresh.hidden = this.waiting.size === 0;
    if (this.waiting.size > 0)
      put(this.fresh, `↑ ${plural(this.waiting.size, "task", "tasks")} changed`);
    this.none?.remove();
    this.none = null;
    grid.el.hidden = false;
    if (this.wrong) this.none = empty("These filters cannot be used", this.wrong.message);
    else if (shown === 0 && complete && !loading)
      this.none = nothing(this.filter, () => (location.hash = "#/tasks"));
    if (this.none) {
      grid.el.hidden = true;
      this.body.append(this.none);
    }
    const all = complete ? "" : " so far";
    put(
      this.tally,
      shown === 0 ? (loading ? "Loading…" : "") : `${plural(shown, "task", "tasks")}${all}`,
    );
    put(grid.foot, loading && shown > 0 ? "Loading more…" : "");
  }
}

function nothing(filter, clear) {
  if (Object.keys(filter).length > 0) {
    return empty(
      "Nothing fits these filters",
      "New tasks that do will appear here.",
      h("button", { type: "button", onclick: clear }, "Show all tasks"),
    );
  }
  return empty(
    "No tasks yet",
    "Send one, and watch it here:",
    command("faultline send echo hello"),
  );
}

const same = (a, b) =>
  a.changed === b.changed && a.state === b.state && (a.attempts ?? 0) === (b.attempts ?? 0);
const href = (task) => `#/task/${encodeURIComponent(task.taskId)}`;

function row() {
  const cell = (key, ...children) =>
    h("span", { role: "gridcell", class: `c-${key}` }, ...children);
  const mark = badge("");
  const [agent, reason, origin, principal, attempts, took] = [
    "strong",
    "b",
    "small",
    "span",
    "span",
    "span",
  ].map((tag) => h(tag));
  const [id, changed, child] = [
    h("a", { tabindex: "-1" }),
    since(),
    h("small", { class: "tag", title: "Another task delegated it" }, "child"),
  ];
  reason.className = "reason";
  const el = h(
    "div",
    { class: "grid-row" },
    cell("state", mark),
    cell("agent", agent, child),
    cell("why", reason, origin),
    cell("principal", principal),
    cell("attempts", attempts),
    cell("took", took),
    cell("id", id),
    cell("changed", changed),
  );
  return {
    el,
    show(task) {
      setBadge(mark, task.state);
      el.dataset.tone = mark.dataset.tone;
      put(agent, task.agent);
      child.hidden = !task.parentId;
      put(reason, task.reason);
      put(origin, task.origin && task.origin !== task.agent ? `in ${task.origin}` : "");
      put(principal, task.principal);
      put(attempts, task.attempts > 1 ? count(task.attempts) : "");
      if (isFinal(task.state)) {
        delete took.dataset.running;
        put(took, span(millis(task.changed) - millis(task.created)));
      } else {
        took.dataset.running = millis(task.created);
        put(took, span(Math.floor((Date.now() - millis(task.created)) / 1000) * 1000));
      }
      put(id, brief(task.taskId));
      id.href = href(task);
      id.title = task.taskId;
      setSince(changed, task.changed);
    },
  };
}
