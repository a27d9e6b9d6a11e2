// A question of a task as a form made from its schema. Violations appear at their fields: first
// those that the browser finds, then those of the mesh, which decides.

import { call, Refused } from "./api.js";
import { command, h, put } from "./dom.js";
import { millis, since, when } from "./format.js";
import { address } from "./parts.js";

const KINDS = {
  KIND_APPROVAL: "asks for approval",
  KIND_CHOICE: "asks for a choice",
  KIND_AUTH_URL: "asks for a login",
  KIND_INPUT: "asks",
};
let unique = 0;

/** `done()` is called after the answer was accepted. */
export function question(asked, taskId, acts, done) {
  const body = h("div", { class: "question-body" });
  const expires = millis(asked.expiresAt);
  const el = h(
    "section",
    { class: "panel question", "aria-label": `${asked.agent} ${KINDS[asked.kind] ?? "asks"}` },
    h(
      "p",
      { class: "eyebrow" },
      h("strong", null, asked.agent),
      ` ${KINDS[asked.kind] ?? "asks"}, `,
      since(asked.requestedAt),
      Number.isFinite(expires)
        ? [
            ", until ",
            h("time", { datetime: asked.expiresAt, title: when(expires) }, when(expires)),
          ]
        : null,
    ),
    h("p", { class: "prompt" }, asked.prompt || "It did not say what for."),
    asked.url ? h("p", null, address(asked.url)) : null,
    body,
  );
  if (!acts) {
    body.append(
      h("p", { class: "dim" }, "This console only looks. Whoever sent the task can answer:"),
      command(`faultline answer ${taskId} TEXT`),
    );
    return el;
  }
  body.append(form(asked, taskId, done));
  return el;
}

function form(asked, taskId, done) {
  const isLogin = asked.kind === "KIND_AUTH_URL";
  const schema = isLogin ? null : asked.schema;
  const approved = asked.kind === "KIND_APPROVAL" ? onlyYesNo(schema) : null;
  const fields = isLogin || approved ? [] : schema ? fieldsOf(schema) : [plain()];
  const wrong = h("p", { class: "wrong", role: "alert", hidden: true });
  const accept = isLogin ? "I have done it" : approved ? "Approve" : "Answer";
  const other = (text, action, look) =>
    h("button", { type: "button", class: look, onclick: () => send(action) }, text);
  const buttons = h(
    "div",
    { class: "buttons" },
    h("button", { type: "submit", class: "primary" }, accept),
    other("Decline", "DECLINE", null),
    other("Dismiss", "DISMISS", "plain"),
  );
  const el = h("form", { novalidate: true }, ...fields.map((field) => field.el), wrong, buttons);

  async function send(action) {
    const answer = { taskId, key: asked.key, action: `ANSWER_ACTION_${action}` };
    for (const field of fields) field.complain("");
    wrong.hidden = true;
    if (action === "ACCEPT") {
      const bad = fields.filter((field) => !field.check());
      if (bad.length > 0) {
        bad[0].focus();
        return;
      }
      if (approved) answer.fields = { [approved]: true };
      else if (schema)
        answer.fields = Object.fromEntries(
          fields
            .map((field) => [field.name, field.value()])
            .filter(([, value]) => value !== undefined),
        );
      else answer.text = fields[0]?.value() ?? "done";
    }
    for (const one of buttons.children) one.disabled = true;
    try {
      await call("Answer", answer);
      done();
    } catch (error) {
      complain(error);
      for (const one of buttons.children) one.disabled = false;
    }
  }

  function complain(error) {
    const rest = [];
    const violations = error instanceof Refused ? error.violations : [];
    for (const { field, description } of violations) {
      const meant = fields.find((one) => one.name === field || field.endsWith(`.${one.name}`));
      if (meant) meant.complain(description);
      else rest.push(field ? `${field} ${description}` : description);
    }
    fields.find((one) => one.isWrong())?.focus();
    if (violations.length > 0 && rest.length === 0) return;
    put(wrong, rest.join("; ") || error.message);
    wrong.hidden = false;
  }

  el.addEventListener("submit", (event) => {
    event.preventDefault();
    send("ACCEPT");
  });
  return el;
}

/** The name of the single boolean field of an approval, if there is nothing else to fill in. */
function onlyYesNo(schema) {
  const [first, ...more] = Object.entries(schema?.properties ?? {});
  return first && more.length === 0 && first[1].type === "boolean" ? first[0] : null;
}

/** One field: label, control, help and violation. */
function field(name, { label, help, required, control, value }) {
  unique += 1;
  const id = `answer-${unique}`;
  control.id = id;
  const wrong = h("span", { class: "wrong", id: `${id}-wrong`, role: "alert" });
  const about = help ? h("span", { class: "dim", id: `${id}-help` }, help) : null;
  control.setAttribute("aria-describedby", `${id}-wrong${help ? ` ${id}-help` : ""}`);
  if (required && control.type !== "checkbox") control.required = true;
  const complain = (text) => {
    put(wrong, text);
    if (text) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  };
  const mark = required ? h("span", { class: "dim" }, " (required)") : null;
  const el =
    control.type === "checkbox"
      ? h("div", { class: "entry check" }, control, h("label", { for: id }, label), about, wrong)
      : h("div", { class: "entry" }, h("label", { for: id }, label, mark), about, control, wrong);
  return {
    name,
    el,
    value,
    complain,
    isWrong: () => control.hasAttribute("aria-invalid"),
    focus: () => control.focus(),
    check() {
      if (control.checkValidity?.() ?? true) return true;
      complain(control.validationMessage);
      return false;
    },
  };
}

function plain() {
  const control = h("textarea", { rows: "3", "data-filter": true });
  return field("text", { label: "Answer", required: true, control, value: () => control.value });
}

const INPUTS = { email: "email", uri: "url", date: "date" };

function fieldsOf(schema) {
  const required = schema.required ?? [];
  return Object.entries(schema.properties ?? {}).map(([name, property]) => {
    const made = controlOf(property, required.includes(name));
    const help = [property.description, made.hint].filter(Boolean).join(" · ");
    return field(name, {
      label: property.title || name,
      help,
      required: required.includes(name),
      ...made,
    });
  });
}

function controlOf(property, required) {
  const choices = optionsOf(property.type === "array" ? (property.items ?? {}) : property);
  if (property.type === "boolean") {
    const control = h("input", { type: "checkbox" });
    control.checked = property.default === true;
    return { control, value: () => control.checked };
  }
  if (property.type === "array") {
    const control = h(
      "select",
      { multiple: true, size: Math.min(choices.length, 6) },
      ...choices.map(([value, title]) => h("option", { value }, title)),
    );
    for (const option of control.options)
      option.selected = (property.default ?? []).includes(option.value);
    return { control, value: () => [...control.selectedOptions].map((option) => option.value) };
  }
  if (choices.length > 0) {
    const none =
      required && property.default !== undefined
        ? null
        : h("option", { value: "" }, required ? "choose…" : "–");
    const control = h(
      "select",
      null,
      none,
      ...choices.map(([value, title]) => h("option", { value }, title)),
    );
    control.value = property.default ?? "";
    return { control, value: () => control.value || undefined };
  }
  if (property.type === "number" || property.type === "integer") {
    const { minimum, maximum } = property;
    const control = h("input", {
      type: "number",
      min: minimum,
      max: maximum,
      step: property.type === "integer" ? "1" : "any",
    });
    control.value = property.default ?? "";
    const hint =
      minimum !== undefined && maximum !== undefined
        ? `${minimum} to ${maximum}`
        : minimum !== undefined
          ? `at least ${minimum}`
          : maximum !== undefined
            ? `at most ${maximum}`
            : "";
    return {
      control,
      hint,
      value: () => (control.value === "" ? undefined : Number(control.value)),
    };
  }
  const control = h("input", {
    type: INPUTS[property.format] ?? "text",
    minlength: property.minLength,
    maxlength: property.maxLength,
    autocomplete: "off",
  });
  control.value = property.default ?? "";
  const hint = property.format === "date-time" ? "such as 2026-01-31T12:00:00Z" : "";
  return { control, hint, value: () => (control.value === "" ? undefined : control.value) };
}

/** The options of a choice, as pairs of value and title. */
function optionsOf(property) {
  const titled = property.oneOf ?? property.anyOf;
  if (titled) return titled.map((one) => [one.const, one.title ?? one.const]);
  return (property.enum ?? []).map((value, at) => [value, property.enumNames?.[at] ?? value]);
}
