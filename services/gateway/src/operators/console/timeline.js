// The events of one task. Consecutive chunks of one artifact are one line, with the number of chunks
// and characters.

import { call } from "./api.js";
import { h, put } from "./dom.js";
import { brief, count, millis, plural, span, state, when } from "./format.js";
import { short, textOf } from "./parts.js";

const PAGE = 200;

export class Timeline {
  constructor(taskId, signal) {
    this.taskId = taskId;
    this.signal = signal;
    this.after = "0";
    this.start = NaN;
    this.last = null;
    this.list = h("ol", { class: "timeline" });
    this.button = h(
      "button",
      { type: "button", class: "plain", hidden: true, onclick: () => this.more().catch(() => {}) },
      "Show more",
    );
    this.el = h(
      "section",
      { class: "panel", "aria-label": "Timeline" },
      h("h2", null, "Timeline"),
      this.list,
      this.button,
    );
  }

  /** Loads all events so far, a long history page by page. */
  async more() {
    if (this.busy) return;
    this.busy = true;
    try {
      const answer = await call(
        "Events",
        { taskId: this.taskId, after: this.after, pageSize: PAGE },
        this.signal,
      );
      for (const one of answer.events ?? []) this.add(one);
      this.button.hidden = !answer.more;
    } finally {
      this.busy = false;
    }
  }

  /** Loads new events only, unless older pages are still missing. */
  async refresh() {
    if (this.button.hidden) await this.more();
  }

  add({ seq, event }) {
    this.after = seq;
    const at = millis(event.time);
    if (Number.isNaN(this.start)) this.start = at;
    const told = tell(event);
    if (told.joins && told.joins === this.last?.joins) {
      this.last.times += 1;
      this.last.bytes += told.bytes;
      put(
        this.last.text,
        `${plural(this.last.times, "chunk", "chunks")}, ${count(this.last.bytes)} characters`,
      );
      return;
    }
    const text = h("span", { class: "event-text" }, told.text ?? "");
    const offset = Number.isFinite(at) ? `+${span(at - this.start)}` : "";
    const el = h(
      "li",
      { "data-tone": told.tone ?? null },
      h("time", { datetime: event.time, title: when(at), class: "n" }, offset),
      h("i", { "aria-hidden": "true" }),
      h(
        "div",
        null,
        h("strong", null, told.what),
        " ",
        told.who ? h("span", { class: "dim" }, told.who) : null,
        told.reason ? h("span", { class: "reason" }, told.reason) : null,
        text,
      ),
    );
    this.list.append(el);
    this.last = { ...told, text, times: 1 };
  }
}

const ACTIONS = {
  ANSWER_ACTION_DECLINE: "Declined",
  ANSWER_ACTION_DISMISS: "Put away unanswered",
  ANSWER_ACTION_EXPIRE: "Nobody answered in time",
};

function tell(event) {
  if (event.submitted) {
    const { message, principal, parent, timeoutMs } = event.submitted;
    const by = parent ? `by task ${brief(parent.taskId)}` : `by ${principal || "somebody"}`;
    const limit = Number(timeoutMs) > 0 ? `, with ${span(Number(timeoutMs))} to do it` : "";
    return { what: "Submitted", who: by + limit, text: short(textOf(message?.parts)) };
  }
  if (event.assigned) {
    const { attempt, workerName, worker, agent } = event.assigned;
    return {
      what: `Attempt ${attempt}`,
      who: `on ${workerName || brief(worker)}${agent ? `, by ${agent}` : ""}`,
      tone: "run",
    };
  }
  if (event.status) return { what: "Said", text: short(textOf(event.status.message?.parts)) };
  if (event.artifact) {
    const { artifact, append } = event.artifact;
    const name = artifact?.name || artifact?.artifactId || "";
    const bytes = textOf(artifact?.parts).length;
    return {
      what: "Wrote",
      who: name,
      joins: `${append ? "+" : "="}${artifact?.artifactId}`,
      bytes,
      text: short(textOf(artifact?.parts)),
    };
  }
  if (event.checkpointed) return { what: "Checkpoint" };
  if (event.asked)
    return {
      what: event.asked.again ? "Asks again" : "Asks",
      text: short(event.asked.interrupt?.prompt || event.asked.interrupt?.url),
      tone: "wait",
    };
  if (event.answered)
    return {
      what: ACTIONS[event.answered.action] ?? "Answered",
      text: short(textOf(event.answered.message?.parts)),
      tone: "good",
    };
  if (event.withdrawn) return { what: "Took its question back" };
  if (event.lost) {
    const { attempt, released, failure, retryAt } = event.lost;
    const pause = retryAt ? millis(retryAt) - millis(event.time) : NaN;
    const again = Number.isFinite(pause) ? `tried again after ${span(pause)}` : "tried again";
    if (failure)
      return {
        what: `Attempt ${attempt} failed`,
        who: again,
        reason: failure.reason,
        text: short(failure.publicMessage),
        tone: "bad",
      };
    return released
      ? { what: `Attempt ${attempt} given back`, who: "by its worker" }
      : { what: `Attempt ${attempt} lost`, who: "its worker is gone", tone: "bad" };
  }
  if (event.tolerated)
    return {
      what: "Went on without",
      reason: event.tolerated.failure?.reason,
      text: short(event.tolerated.failure?.publicMessage),
      tone: "wait",
    };
  if (event.ended) {
    const { word, tone } = state(event.ended.state);
    const { failure, message } = event.ended;
    return {
      what: word.charAt(0).toUpperCase() + word.slice(1),
      reason: failure?.reason,
      text: short(failure?.publicMessage || textOf(message?.parts)),
      tone,
    };
  }
  return { what: "Something newer than this console" };
}
