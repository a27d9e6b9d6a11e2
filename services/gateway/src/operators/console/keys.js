// Keyboard shortcuts outside of fields and dialogs. A page may handle `move` and `open` itself; on
// other pages the rows are links, and moving moves the focus.

const GO = { o: "#/", t: "#/tasks", f: "#/failures" };

export function keys({ help, page }) {
  let going = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return;
    const { target, key } = event;
    const typing = target.matches?.("input, textarea, select");
    if (key === "Escape") {
      if (typing) target.blur();
      else page()?.mounted.leave?.();
      return;
    }
    if (typing) return;
    const after = going;
    going = false;
    if (after && GO[key]) location.hash = GO[key];
    else if (key === "g") going = true;
    else if (key === "?") help();
    else if (key === "t") document.getElementById("theme").click();
    else if (key === "/") focusFilter();
    else if (key === "j" || key === "ArrowDown") move(1, page());
    else if (key === "k" || key === "ArrowUp") move(-1, page());
    else if (key === "Enter" && page()?.mounted.open) {
      if (target.closest("a, button, summary")) return;
      page().mounted.open();
    } else return;
    event.preventDefault();
  });
}

function focusFilter() {
  document.querySelector("[data-filter]")?.focus();
}

function move(step, page) {
  if (page?.mounted.move) {
    page.mounted.move(step);
    return;
  }
  const rows = [...document.querySelectorAll("main [data-row]")].filter(
    (row) => row.offsetParent !== null,
  );
  if (rows.length === 0) {
    document.getElementById("main").scrollBy({ top: step * 60 });
    return;
  }
  const at = rows.indexOf(document.activeElement);
  const next =
    at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1);
  rows[next].focus();
  rows[next].scrollIntoView({ block: "nearest" });
}
