// The tree of delegated tasks below one task. A branch is loaded when it is expanded; the failed
// one is expanded from the start.

import { h } from "./dom.js";
import { badge, brief, state } from "./format.js";

/**
 * `path` are the tasks through which the failure came; `opened` are those that the user expanded,
 * and stay expanded when the tree is drawn again.
 */
export function tree(shown, inspect, path, opened) {
  const root = h("ul", { class: "tree" });
  for (const child of shown.children ?? []) root.append(branch(child, { inspect, path, opened }));
  return h(
    "section",
    { class: "panel", "aria-label": "Delegated" },
    h("h2", null, "Delegated ", h("small", { class: "dim" }, shown.children.length)),
    root,
  );
}

function branch(child, knows) {
  const { inspect, path, opened } = knows;
  const below = h("ul");
  const toggle = h("button", {
    type: "button",
    class: "twig",
    "aria-expanded": "false",
    "aria-label": `What ${child.agent} delegated`,
  });
  const line = h(
    "div",
    { class: "twig-line" },
    toggle,
    h(
      "a",
      { href: `#/task/${encodeURIComponent(child.taskId)}`, "data-row": true, title: child.taskId },
      h("strong", null, child.agent),
    ),
    badge(child.state),
    h("code", { class: "dim" }, brief(child.taskId)),
    child.detached
      ? h("small", { class: "tag", title: "Goes on when its parent ends" }, "detached")
      : null,
  );
  const el = h("li", { "data-tone": state(child.state).tone }, line, below);
  let read = false;
  const open = async (wanted) => {
    toggle.setAttribute("aria-expanded", wanted);
    below.hidden = !wanted;
    if (!wanted || read) return;
    read = true;
    try {
      const task = await inspect(child.taskId);
      const children = task.children ?? [];
      below.replaceChildren(...children.map((one) => branch(one, knows)));
      // A task without branches has no button.
      if (children.length === 0) toggle.classList.add("leaf");
      toggle.disabled = children.length === 0;
    } catch {
      read = false;
      below.replaceChildren(h("li", { class: "dim" }, "It cannot be read now."));
    }
  };
  toggle.addEventListener("click", () => {
    const wanted = toggle.getAttribute("aria-expanded") !== "true";
    if (wanted) opened.add(child.taskId);
    else opened.delete(child.taskId);
    open(wanted);
  });
  if (path.has(child.taskId) || opened.has(child.taskId)) open(true);
  else below.hidden = true;
  return el;
}
