// The task page: state, failure, question, events, delegated tasks and results. It is read again
// when the task or one below it changes.

import { call, follow, Lost } from "./api.js";
import { chain } from "./chain.js";
import { confirmCancel } from "./dialogs.js";
import { copy, empty, h, put } from "./dom.js";
import {
  badge,
  brief,
  count,
  isFinal,
  isWaiting,
  millis,
  plural,
  since,
  span,
  when,
} from "./format.js";
import { artifacts, conversation } from "./parts.js";
import { question } from "./question.js";
import { named } from "./reasons.js";
import { lastList } from "./tasks.js";
import { Timeline } from "./timeline.js";
import { tree } from "./tree.js";

/** The poll interval of a live task, because artifacts grow without a change of state. */
const LOOK_MS = 2000;

export const title = (id) => `Task ${brief(id)}`;

export function mount(main, { argument: id, config, signal }) {
  const page = new Page(main, id, config, signal);
  const changed = (news) => {
    const tasks = news.tasks ?? [];
    if (news.missed || tasks.some((task) => page.concerns(task.taskId))) page.read();
  };
  // Delegated tasks belong to the same principal.
  page.read().then(() => {
    const filter = { principal: page.principal };
    follow(filter, { opened: () => page.read(), changed }, signal);
  });
  signal.addEventListener("abort", () => clearTimeout(page.timer));
  return { leave: () => (location.hash = lastList()) };
}

class Page {
  constructor(main, id, config, signal) {
    Object.assign(this, { id, config, signal, seen: new Map(), drawn: {} });
    Object.assign(this, { below: new Set(), opened: new Set(), places: {} });
    this.timeline = new Timeline(id, signal);
    this.head = h(
      "header",
      { class: "task-head" },
      h(
        "h1",
        { class: "id-title" },
        h("span", { class: "dim" }, "Task "),
        h("code", null, brief(id)),
      ),
    );
    this.questions = h("div", { class: "stack" });
    this.why = h("div", { class: "stack" });
    this.side = h("div", { class: "stack" });
    this.left = h("div", { class: "stack" }, this.timeline.el);
    this.body = h(
      "div",
      { class: "stack" },
      this.questions,
      this.why,
      h("div", { class: "halves" }, this.left, this.side),
    );
    main.append(this.head, this.body);
  }

  concerns(id) {
    return id === this.id || this.below.has(id);
  }

  /** A task below. A terminal one is fetched once, because it no longer changes. */
  inspect = (id) => {
    this.below.add(id);
    const known = this.seen.get(id);
    if (known) return known;
    const asked = call("Inspect", { taskId: id }, this.signal);
    const forget = () => this.seen.delete(id);
    this.seen.set(id, asked);
    asked.then((task) => isFinal(task.task?.status?.state) || forget(), forget);
    return asked;
  };

  async read() {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    this.again = false;
    clearTimeout(this.timer);
    let final = false;
    try {
      const task = await call("Inspect", { taskId: this.id }, this.signal);
      final = isFinal(task.task?.status?.state);
      this.show(task);
      await this.timeline.refresh();
    } catch (error) {
      if (this.signal.aborted) return;
      if (error.status === 404) this.missing();
      else if (!(error instanceof Lost) && !error.passes) this.fail(error);
    }
    this.busy = false;
    if (this.signal.aborted) return;
    if (this.again) await this.read();
    else if (!final) this.timer = setTimeout(() => this.read(), LOOK_MS);
  }

  missing() {
    this.head.replaceChildren();
    this.body.replaceChildren(
      empty(
        "No such task",
        `There is no task ${this.id}, or it is not yours to see.`,
        h("a", { href: "#/tasks" }, "All tasks"),
      ),
    );
  }

  fail(error) {
    this.body.replaceChildren(empty("This cannot be shown", error.message));
  }

  /** Redraws a section only when its data differs, so that nothing moves under the cursor. */
  part(name, value, draw) {
    const next = JSON.stringify(value);
    if (this.drawn[name] === next) return;
    this.drawn[name] = next;
    draw(value);
  }

  show(shown) {
    const { task } = shown;
    this.principal = shown.principal;
    for (const child of shown.children ?? []) this.below.add(child.taskId);
    const state = task.status.state;
    // The remaining time changes with every read, so only its text is updated.
    const { remainingMs, ...lasting } = shown;
    const about = { ...lasting, task: { id: task.id, state, contextId: task.contextId } };
    this.part("head", about, () => this.header(shown, state));
    const left = span(Number(remainingMs ?? 0));
    put(this.timeLeft, `${left} of ${span(Number(shown.timeoutMs))}`);
    const asks = isWaiting(state) ? (shown.interrupts ?? []) : [];
    this.part("questions", asks, () =>
      this.questions.replaceChildren(
        ...asks.map((one) => question(one, this.id, this.config.acts, () => this.read())),
      ),
    );
    this.part("why", [shown.failure, shown.tolerated, isFinal(state)], () => this.because(shown));
    const { causes } = shown.failure ?? {};
    const path = new Set((causes ?? []).map((cause) => cause.taskId));
    this.panel("tree", shown.children, () => tree(shown, this.inspect, path, this.opened));
    this.panel("attempts", shown.attempts, () => attempts(shown));
    this.panel("artifacts", task.artifacts, artifacts);
    this.panel("messages", task.history, conversation);
  }

  /** One panel at the side, shown if it has content. */
  panel(name, list, draw) {
    const place = (this.places[name] ??= this.side.appendChild(h("div", { class: "stack" })));
    this.part(name, list ?? [], () => {
      const scrolled = [...place.querySelectorAll("pre")].map((block) => block.scrollTop);
      place.replaceChildren(...(list?.length ? [draw(list)] : []));
      place.querySelectorAll("pre").forEach((block, at) => (block.scrollTop = scrolled[at] ?? 0));
    });
  }

  header(shown, state) {
    const { task } = shown;
    const [created, ended] = [millis(shown.created), millis(shown.ended)];
    const mark = badge(state);
    mark.classList.add("large");
    const took = h("b", null, span((Number.isFinite(ended) ? ended : Date.now()) - created));
    if (!isFinal(state)) took.dataset.running = created;
    const facts = [
      [
        "Principal",
        h(
          "a",
          { href: `#/tasks?principal=${encodeURIComponent(shown.principal ?? "")}` },
          shown.principal,
        ),
      ],
      ["Began", since(shown.created)],
      [isFinal(state) ? "Took" : "For", took],
      ["Attempts", h("b", null, count(shown.attempts?.length))],
    ];
    if (shown.parent)
      facts.push([
        "Delegated by",
        h(
          "a",
          { href: `#/task/${encodeURIComponent(shown.parent.taskId)}`, title: shown.parent.taskId },
          brief(shown.parent.taskId),
        ),
      ]);
    this.timeLeft = h("b");
    if (shown.timeoutMs) facts.push(["Time left", this.timeLeft]);
    if (task.contextId)
      facts.push(["Context", h("code", { title: task.contextId }, brief(task.contextId))]);
    if (shown.lateReports) facts.push(["Late reports", h("b", null, count(shown.lateReports))]);
    if (shown.traceId) facts.push(["Trace", trace(shown.traceId, shown.traceUrl)]);
    const cancel =
      this.config.acts && !isFinal(state)
        ? h(
            "button",
            { type: "button", class: "danger-quiet", onclick: () => this.cancel(shown.agent) },
            "Cancel task",
          )
        : null;
    this.wrong = h("p", { class: "wrong", role: "alert", hidden: true });
    this.head.replaceChildren(
      h(
        "div",
        { class: "task-line" },
        h(
          "h1",
          null,
          h("a", { href: `#/tasks?agent=${encodeURIComponent(shown.agent)}` }, shown.agent),
        ),
        mark,
        h("code", { class: "id" }, task.id),
        copy(task.id, "the task's id"),
        h("span", { class: "grow" }),
        cancel,
      ),
      this.wrong,
      h(
        "dl",
        { class: "facts" },
        ...facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
      ),
    );
    document.title = `${shown.agent} ${mark.textContent} · faultline`;
  }

  async cancel(agent) {
    const reason = await confirmCancel(agent);
    if (reason === null) return;
    try {
      await call("Cancel", { taskId: this.id, reason });
    } catch (error) {
      put(this.wrong, error.message);
      this.wrong.hidden = false;
    }
    this.read();
  }

  because(shown) {
    const { failure } = shown;
    const parts = [];
    if (failure) parts.push(chain(failure, shown, this.inspect));
    const tolerated = shown.tolerated ?? [];
    if (tolerated.length > 0) {
      const rows = tolerated.map((one) => {
        const root = one.causes?.at(-1) ?? {};
        return h(
          "li",
          null,
          h("span", { class: "reason" }, root.reason || one.reason),
          h("span", { class: "dim" }, " in ", root.agent || one.origin?.agent || "the mesh", ": "),
          root.publicMessage || one.publicMessage || named(one.reason)?.title,
        );
      });
      parts.push(
        h(
          "section",
          { class: "panel tolerated", "aria-label": "Degraded" },
          h(
            "h2",
            null,
            "It went on without ",
            h("small", { class: "dim" }, plural(tolerated.length, "failure", "failures")),
          ),
          h("ul", null, ...rows),
        ),
      );
    }
    this.why.replaceChildren(...parts);
  }
}

const OUTCOMES = {
  OUTCOME_RUNNING: ["run", "runs"],
  OUTCOME_ENDED: ["off", "ended"],
  OUTCOME_WORKER_LOST: ["bad", "worker lost"],
  OUTCOME_RELEASED: ["off", "given back"],
  OUTCOME_FAILED: ["bad", "failed"],
};

function attempts(shown) {
  const rows = shown.attempts.map((attempt) => {
    const [tone, word] = OUTCOMES[attempt.outcome] ?? ["off", "ended"];
    const took = millis(attempt.ended) - millis(attempt.started);
    const mark = h(
      "span",
      { class: "state", "data-tone": tone },
      h("i", { "aria-hidden": "true" }),
      h("span", null, word),
    );
    return h(
      "tr",
      null,
      h("td", { class: "n" }, attempt.number),
      h("td", null, mark),
      h(
        "td",
        null,
        attempt.worker,
        attempt.agent ? h("small", { class: "dim" }, ` as ${attempt.agent}`) : null,
      ),
      h("td", { class: "n" }, h("span", { title: when(millis(attempt.started)) }, span(took))),
      h(
        "td",
        null,
        attempt.failure
          ? h(
              "span",
              { class: "reason", title: attempt.failure.publicMessage },
              attempt.failure.reason,
            )
          : "",
      ),
    );
  });
  const heads = ["#", "Outcome", "Worker", "Took", "Reason"].map((name) =>
    h("th", { scope: "col", class: name === "Took" ? "n" : null }, name),
  );
  return h(
    "section",
    { class: "panel", "aria-label": "Attempts" },
    h("h2", null, "Attempts ", h("small", { class: "dim" }, shown.attempts.length)),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "attempts" },
        h("thead", null, h("tr", null, ...heads)),
        h("tbody", null, ...rows),
      ),
    ),
  );
}

/** The link to the trace if the gateway has one, else the trace id. */
function trace(id, url) {
  const shown = h("code", { title: id }, brief(id));
  if (!url) return [shown, copy(id, "the trace id")];
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, shown, " ↗");
}
