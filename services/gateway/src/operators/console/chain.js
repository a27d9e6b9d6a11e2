// The chain of a failure: from its origin, hop by hop, to the answer of the caller, with the time
// and the attempts of the task at each hop.

import { copy, h, svg } from "./dom.js";
import { brief, count, millis, plural, precise, span, when } from "./format.js";
import { row } from "./reasons.js";

const OUTCOMES = {
  OUTCOME_RUNNING: ["run", "runs"],
  OUTCOME_ENDED: ["done", "ended"],
  OUTCOME_WORKER_LOST: ["lost", "lost its worker"],
  OUTCOME_RELEASED: ["off", "was given back"],
  OUTCOME_FAILED: ["bad", "failed"],
};

/** Why no further attempt was made. A hop without a reason forwards a failure from below. */
const NOT_RETRIED = {
  NOT_RETRIED_REASON: "its reason does not allow it",
  NOT_RETRIED_PAUSE: "it asked for too long a pause",
  NOT_RETRIED_SPENT: "all attempts were made",
  NOT_RETRIED_BUDGET: "too many of the agent's tasks fail",
  NOT_RETRIED_DEADLINE: "its time would have been over",
  NOT_RETRIED_ASKING: "somebody was being asked",
};

/** Draws a failure of a task; `inspect(id)` fetches the tasks of its hops. */
export function chain(failure, shown, inspect) {
  const about = row(failure);
  const hops = hopsOf(failure, shown);
  const origin = hops[0];
  const list = h("ol", { class: "hops" });
  const rows = hops.map((hop, at) => hopRow(hop, at === 0, failure));
  list.append(...(failure.aggregate?.branches ?? []).map(branchRow));
  list.append(...rows.map((one) => one.el));
  if (failure.causesDropped) {
    const text = `${plural(failure.causesDropped, "hop was", "hops were")} not kept: the chain was too long.`;
    list.insertBefore(
      h("li", { class: "gap" }, h("span", { class: "rail" }), h("p", { class: "dim" }, text)),
      rows[1]?.el ?? null,
    );
  }
  list.append(answerRow(shown, about));
  fillTimes(rows, hops, shown, inspect);
  const below = hops.length - 1 + (failure.causesDropped ?? 0);
  const where = below === 0 ? "" : `, ${plural(below, "hop", "hops")} below this task`;
  return h(
    "section",
    { class: "chain panel", "aria-labelledby": "why-title" },
    h(
      "header",
      { class: "chain-head" },
      h("p", { class: "eyebrow" }, "Why it failed"),
      h(
        "h2",
        { id: "why-title" },
        h("span", { class: "reason" }, origin.reason),
        " ",
        h("span", { class: "dim" }, "in"),
        " ",
        origin.agent,
        h("span", { class: "dim" }, where),
      ),
      origin.message ? null : h("p", { class: "said" }, failure.publicMessage || about.title),
    ),
    h(
      "div",
      { class: "chain-body" },
      list,
      h("aside", { class: "advice", "aria-label": "What to do" }, ...adviceOf(failure, shown, about)),
    ),
  );
}

/** The hops, origin first. A failure with one hop may have no causes: then it is its own origin. */
function hopsOf(failure, shown) {
  const causes = failure.causes?.length ? [...failure.causes].reverse() : [{}];
  return causes.map((cause, at) => {
    const first = at === 0;
    return {
      agent:
        cause.agent ||
        (first && (failure.origin?.agent || failure.origin?.service)) ||
        shown.agent ||
        "unknown",
      taskId: cause.taskId || (causes.length === 1 ? failure.taskId : ""),
      reason: cause.reason || (first ? failure.reason : ""),
      code: cause.businessCode || (first ? failure.businessCode : ""),
      message: cause.publicMessage || (causes.length === 1 ? failure.publicMessage : ""),
      time: cause.time || (first ? failure.time : null),
    };
  });
}

function hopRow(hop, first, failure) {
  const mark = node(first ? crack() : svg("circle", { cx: 14, cy: 16, r: 4.5 }));
  const facts = h("p", { class: "hop-facts" });
  const bar = h("div", { class: "hop-time" });
  const words = first ? "born here" : "passed on by";
  const link = hop.taskId
    ? h(
        "a",
        {
          class: "id",
          href: `#/task/${encodeURIComponent(hop.taskId)}`,
          title: hop.taskId,
          "data-row": true,
        },
        brief(hop.taskId),
      )
    : null;
  // Older versions stored this text for every hop above the origin.
  const repeated = !first && /^Downstream agent '.*' failed$/.test(hop.message);
  const el = h(
    "li",
    { class: first ? "hop origin" : "hop" },
    h("span", { class: "rail" }, mark),
    h(
      "div",
      { class: "hop-main" },
      h(
        "p",
        { class: "hop-who" },
        h("span", { class: "unseen" }, `${words} `),
        h("strong", null, hop.agent),
        first ? h("span", { class: "reason" }, hop.reason) : null,
        link,
      ),
      hop.message && !repeated ? h("p", { class: "hop-said" }, `“${hop.message}”`) : null,
      facts,
    ),
    bar,
  );
  const told = [];
  if (first && hop.code) told.push(["code", hop.code, "code"]);
  if (first && failure.errorType) told.push(["type", failure.errorType, "code"]);
  const show = () =>
    facts.replaceChildren(
      ...told.map(([name, text, tag]) =>
        h("span", null, h("i", null, name), " ", h(tag ?? "b", null, text)),
      ),
    );
  if (first && failure.aggregate) {
    const { asked, required, succeeded } = failure.aggregate;
    told.push(["asked", count(asked)], ["needed", count(required)], ["answered", count(succeeded)]);
  }
  if (hop.time) told.push(["at", precise(millis(hop.time))]);
  show();
  return {
    el,
    bar,
    tell(task) {
      const attempts = task?.attempts ?? [];
      const last = attempts.at(-1);
      const worker = last?.worker || (first ? failure.origin?.worker : "");
      if (worker) told.push(["worker", worker]);
      if (attempts.length > 1) told.push(["attempts", count(attempts.length)]);
      else if (first && failure.retriesSpent)
        told.push(["attempts", count(failure.retriesSpent + 1)]);
      if (last?.agent) told.push(["stood in", last.agent]);
      const why = NOT_RETRIED[task?.notRetried];
      if (why) told.push(["not tried again", why]);
      show();
    },
  };
}

/** One hop. */
function node(mark) {
  const size = { viewBox: "0 0 28 32", width: 28, height: 32 };
  return svg("svg", { class: "node", "aria-hidden": "true", ...size }, mark);
}

/** The origin. */
function crack() {
  return svg(
    "g",
    { class: "crack" },
    svg("circle", { cx: 14, cy: 16, r: 10 }),
    svg("path", { d: "M16.6 9.2l-4.3 5.3 3.7 2.4-4.4 6" }),
  );
}

function answerRow(shown, about) {
  const numbers = [
    ["HTTP", about.http],
    ["gRPC", about.code],
    ["JSON-RPC", String(about.jsonrpc ?? "").replace("-", "−")],
  ];
  const arrow = node(svg("path", { class: "arrow", d: "M14 6v13m-5-4.5l5 5 5-5" }));
  return h(
    "li",
    { class: "hop answer" },
    h("span", { class: "rail" }, arrow),
    h(
      "div",
      { class: "hop-main" },
      h(
        "p",
        { class: "hop-who" },
        h("span", { class: "dim" }, shown.parent ? "what " : "the answer to "),
        h("strong", null, shown.parent ? "the agent above" : shown.principal || "the caller"),
        shown.parent ? h("span", { class: "dim" }, " was told") : null,
      ),
      h(
        "p",
        { class: "hop-facts" },
        ...numbers.map(([name, text]) =>
          h("span", null, h("i", null, name), " ", h("b", null, text)),
        ),
        h(
          "span",
          null,
          h("i", null, "retry"),
          " ",
          h("b", null, shown.advice?.verdict === "retry" ? "yes" : "no"),
        ),
      ),
    ),
    h("div", { class: "hop-time" }),
  );
}

/** Shows the advice of the gateway. */
function adviceOf(failure, shown, about) {
  const advice = shown.advice ?? {};
  const text = advice.text ?? "";
  const parts = [
    h("p", { class: "eyebrow" }, "What to do"),
    h("p", { class: "do" }, text.charAt(0).toUpperCase() + text.slice(1), "."),
    h(
      "p",
      { class: "who" },
      h("span", { class: "dim" }, "Who acts: "),
      h("strong", null, advice.party || "nobody"),
    ),
    h("p", { class: "eyebrow" }, `What ${about.name ?? failure.reason} means`),
    h("p", { class: "why" }, about.help ?? ""),
  ];
  for (const violation of failure.violations ?? []) {
    parts.push(
      h("p", { class: "violation" }, h("code", null, violation.field), " ", violation.description),
    );
  }
  if (failure.foreign)
    parts.push(
      h(
        "p",
        { class: "why" },
        "A peer outside the mesh said so: its words are quoted, not believed.",
      ),
    );
  parts.push(
    h(
      "p",
      { class: "fine" },
      h("span", { class: "dim" }, "Failure "),
      h("code", { title: failure.id }, brief(failure.id)),
      copy(failure.id ?? "", "the failure id"),
    ),
  );
  return parts;
}

/** The failed branches of a fan-out, which together are the origin. */
function branchRow(branch) {
  const link = { href: `#/task/${encodeURIComponent(branch.taskId)}`, title: branch.taskId };
  return h(
    "li",
    { class: "hop branch" },
    h("span", { class: "rail" }, node(svg("circle", { cx: 14, cy: 16, r: 4.5 }))),
    h(
      "div",
      { class: "hop-main" },
      h(
        "p",
        { class: "hop-who" },
        h("strong", null, branch.agent),
        h("span", { class: "reason" }, branch.reason),
        branch.taskId
          ? h("a", { class: "id", "data-row": true, ...link }, brief(branch.taskId))
          : null,
      ),
      branch.publicMessage ? h("p", { class: "hop-said" }, `“${branch.publicMessage}”`) : null,
    ),
    h("div", { class: "hop-time" }),
  );
}

/** Draws the times of all hops on one scale, once all are known. */
async function fillTimes(rows, hops, shown, inspect) {
  const tasks = await Promise.all(
    hops.map((hop) =>
      hop.taskId === shown.task?.id
        ? shown
        : hop.taskId
          ? inspect(hop.taskId).catch(() => null)
          : null,
    ),
  );
  const known = tasks.filter(Boolean);
  const from = Math.min(...known.map((task) => millis(task.created)));
  const to = Math.max(
    ...known
      .map((task) => millis(task.ended ?? task.task?.status?.timestamp))
      .filter(Number.isFinite),
  );
  rows.forEach((one, at) => {
    const task = tasks[at];
    one.tell(task);
    if (!task || !(to > from)) {
      if (!task)
        one.bar.append(h("span", { class: "dim" }, hops[at].taskId ? "outside this mesh" : ""));
      return;
    }
    one.bar.append(bar(task, from, to));
  });
}

function bar(task, from, to) {
  const [start, end] = [millis(task.created), millis(task.ended ?? task.task?.status?.timestamp)];
  const x = (ms) => ((Math.min(Math.max(ms, from), to) - from) / (to - from)) * 1000;
  const wide = (a, b) => Math.max(x(b) - x(a), 6);
  const pieces = (task.attempts ?? []).map((attempt) => {
    const [begun, over] = [millis(attempt.started), millis(attempt.ended ?? task.ended) || end];
    const [tone, word] = OUTCOMES[attempt.outcome] ?? ["off", "ended"];
    const failed = attempt === task.attempts.at(-1) && tone === "done" ? "bad" : tone;
    const text = `Attempt ${attempt.number} on ${attempt.worker}: ${word} after ${span(over - begun)}`;
    return svg(
      "rect",
      { x: x(begun), y: 6, width: wide(begun, over), height: 8, rx: 2, "data-tone": failed },
      svg("title", null, text),
    );
  });
  const text = `${when(start)}, for ${span(end - start)}`;
  return h(
    "div",
    { class: "span" },
    svg(
      "svg",
      { viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img", "aria-label": text },
      svg(
        "rect",
        { class: "life", x: x(start), y: 8, width: wide(start, end), height: 4, rx: 2 },
        svg("title", null, text),
      ),
      ...pieces,
    ),
    h("b", { class: "n" }, span(end - start)),
  );
}
