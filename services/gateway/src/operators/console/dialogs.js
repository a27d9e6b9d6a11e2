// Modal dialogs: the prompt for a token, the confirmation of a cancel, and the list of keys.

import { h } from "./dom.js";

function open(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  return dialog;
}

/** Asks for a token until one is entered. */
export function ask(refused, wasWrong) {
  return new Promise((resolve) => {
    const input = h("input", {
      id: "token",
      type: "password",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
      "aria-describedby": "token-why",
      "aria-invalid": wasWrong ? "true" : null,
      autofocus: true,
    });
    const submit = (event) => {
      event.preventDefault();
      const token = input.value.trim();
      if (!token) return;
      dialog.close();
      resolve(token);
    };
    const why = wasWrong
      ? h("p", { id: "token-why", class: "wrong", role: "alert" }, refused.message)
      : h(
          "p",
          { id: "token-why" },
          "This mesh knows its callers. Use a token with the scope ",
          h("code", null, "operate"),
          "; it is kept until you close this tab.",
        );
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-labelledby": "token-title" },
      h(
        "form",
        { onsubmit: submit },
        h("h2", { id: "token-title" }, "Who are you?"),
        why,
        h("label", { for: "token" }, "Token"),
        input,
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "submit", class: "primary" }, "Continue"),
        ),
      ),
    );
    // Without a page behind it, the dialog cannot be closed.
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    open(dialog);
  });
}

/** Asks for the reason of a cancel. Resolves to the reason, or to null. */
export function confirmCancel(agent) {
  return new Promise((resolve) => {
    let answer = null;
    const reason = h("input", {
      id: "why",
      type: "text",
      maxlength: "200",
      autocomplete: "off",
      autofocus: true,
    });
    const submit = (event) => {
      event.preventDefault();
      answer = reason.value.trim();
      dialog.close();
    };
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-labelledby": "cancel-title" },
      h(
        "form",
        { onsubmit: submit },
        h("h2", { id: "cancel-title" }, "Cancel this task?"),
        h("p", null, "It stops, and so does everything it delegated. That cannot be taken back."),
        h(
          "label",
          { for: "why" },
          "Why ",
          h("span", { class: "dim" }, "(whoever waits for ", agent, " will read it)"),
        ),
        reason,
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", onclick: () => dialog.close() }, "Let it run"),
          h("button", { type: "submit", class: "danger" }, "Cancel the task"),
        ),
      ),
    );
    dialog.addEventListener("close", () => resolve(answer));
    open(dialog);
  });
}

const KEYS = [
  [["j", "k", "↓", "↑"], "the next and the previous row"],
  [["Enter"], "open it"],
  [["/"], "to the filters, or to the answer"],
  [["Esc"], "out of a field; from a task to the list"],
  [["g o", "g t", "g f"], "overview, tasks, failures"],
  [["t"], "light, dark, as the system"],
  [["?"], "this"],
];

export function help(config) {
  if (document.querySelector("dialog[open]")) return;
  const rows = KEYS.flatMap(([names, what]) => [
    h("dt", null, ...names.map((name) => h("kbd", null, name))),
    h("dd", null, what),
  ]);
  const acts = config.acts
    ? "You may cancel and answer here."
    : "This console only looks: cancelling and answering are switched off.";
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", { class: "keys" }, ...rows),
    h("p", { class: "dim" }, acts, config.version ? ` faultline ${config.version}.` : ""),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close"),
    ),
  );
  open(dialog);
}
