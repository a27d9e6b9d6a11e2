// The rows of the overview: agents, workers, waiting tasks and failures. Each row is created once
// and then updated.

import { h, put, set } from "./dom.js";
import { badge, brief, count, millis, pause, plural, setSince, since, sum } from "./format.js";
import { named } from "./reasons.js";
import { spark } from "./spark.js";

/** The condition of an agent in two words, and its severity. */
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

export function agentRow(agent) {
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
      failed.hidden = bad === 0;
    },
  };
}

export function workerRow(worker) {
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

export function waitingRow(task) {
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

export function failingRow(failure) {
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
