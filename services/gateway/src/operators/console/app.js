// The frame of the console: routing between pages, the prompt for a token, the connection state,
// and the keys that work everywhere. The content of a page is in its own module.

import { hasToken, load, Lost, onLink, onLocked, reconnect, setToken } from "./api.js";
import { ask, help } from "./dialogs.js";
import { empty, h, put } from "./dom.js";
import { tick } from "./format.js";
import { loadReasons } from "./reasons.js";
import { keys } from "./keys.js";
import * as failures from "./failures.js";
import * as overview from "./overview.js";
import * as task from "./task.js";
import * as tasks from "./tasks.js";

const PAGES = { overview, tasks, task, failures };
const main = document.getElementById("main");
const note = document.getElementById("note");
const link = document.getElementById("link");
const themeButton = document.getElementById("theme");
const leaveButton = document.getElementById("leave");

/** The configuration of the gateway for this user. */
let config = {};
let shown = null;

/** Parses `#/task/ID?a=b` into the name of a page, its argument and its parameters. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [name, ...rest] = path.split("/");
  const page = name === "" ? "overview" : name;
  let argument = rest.join("/");
  try {
    argument = decodeURIComponent(argument);
  } catch {
    // A malformed escape is shown literally.
  }
  return { page, argument, params: new URLSearchParams(query ?? "") };
}

function show() {
  const { page, argument, params } = route();
  const same = shown && shown.page === page && shown.argument === argument;
  if (same && shown.mounted.update) {
    shown.mounted.update(params);
    return;
  }
  shown?.controller.abort();
  const controller = new AbortController();
  main.replaceChildren();
  const known = Object.hasOwn(PAGES, page);
  main.className = `page-${known ? page : "none"}`;
  for (const item of document.querySelectorAll("[data-page]")) {
    const current = item.dataset.page === (page === "task" ? "tasks" : page);
    if (current) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  if (!known) {
    document.title = "Not found · faultline";
    main.append(
      h(
        "div",
        { class: "empty" },
        h("h1", null, "There is no such page"),
        h(
          "p",
          null,
          "There are the ",
          h("a", { href: "#/" }, "overview"),
          ", ",
          h("a", { href: "#/tasks" }, "tasks"),
          " and ",
          h("a", { href: "#/failures" }, "failures"),
          ".",
        ),
      ),
    );
    shown = { page, argument, controller, mounted: {} };
    return;
  }
  const title = PAGES[page].title(argument);
  document.title = `${title} · faultline`;
  const mounted = PAGES[page].mount(main, { argument, params, config, signal: controller.signal });
  shown = { page, argument, controller, mounted: mounted ?? {} };
  // Moves the focus to the top of the new page, for keyboards and screen readers.
  if (!main.contains(document.activeElement)) main.focus({ preventScroll: true });
}

const WORDS = { live: "Live", lost: "Reconnecting", connecting: "Connecting" };
let lost = null;

function showLink(news) {
  link.dataset.state = news.state;
  put(link.lastElementChild, WORDS[news.state]);
  lost = news.state === "lost" ? news : null;
  showNote();
}

/** Shows the problem of the connection, and the time of the next attempt. */
function showNote() {
  if (!lost) {
    note.hidden = true;
    note.replaceChildren();
    return;
  }
  const why =
    lost.error instanceof Lost ? "Lost the connection to the gateway." : lost.error.message;
  const left = Math.max(0, Math.ceil((lost.until - Date.now()) / 1000));
  const text = left > 0 ? `What you see may be old. Trying again in ${left} s.` : "Trying again…";
  if (note.hidden) {
    const button = h("button", { type: "button", onclick: reconnect }, "Try now");
    note.replaceChildren(h("strong", null), h("span", null), button);
    note.hidden = false;
  }
  put(note.children[0], why);
  put(note.children[1], text);
}

const THEME_WORDS = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
function showTheme() {
  const name = window.theme.current();
  themeButton.dataset.theme = name;
  themeButton.setAttribute("aria-label", THEME_WORDS[name]);
  themeButton.title = THEME_WORDS[name];
}

/** One prompt for all rejected calls; a token that was entered meanwhile is tried first. */
let asking = null;
onLocked((refused, sent) => {
  if (sent !== null && sent !== sessionStorage.getItem("faultline.token")) return undefined;
  asking ??= ask(refused, sent !== null)
    .then((token) => {
      setToken(token);
      leaveButton.hidden = false;
    })
    .finally(() => (asking = null));
  return asking;
});

async function start() {
  onLink(showLink);
  showTheme();
  themeButton.addEventListener("click", () => {
    window.theme.turn();
    showTheme();
  });
  // The fragment of the address is a route, so this cannot be a link.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  document.getElementById("help").addEventListener("click", () => help(config));
  leaveButton.hidden = !hasToken();
  leaveButton.addEventListener("click", () => {
    setToken(null);
    location.reload();
  });
  keys({ help: () => help(config), page: () => shown });
  setInterval(() => {
    if (document.hidden) return;
    tick(main);
    if (lost) showNote();
  }, 1000);
  for (let pause = 500; ; pause = Math.min(pause * 2, 8000)) {
    try {
      [config] = await Promise.all([load("config.json"), loadReasons()]);
      break;
    } catch (error) {
      if (!(error instanceof Lost) && !error.passes) {
        refuse(error);
        return;
      }
      showLink({ state: "lost", until: Date.now() + pause, error });
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
  showLink({ state: "connecting" });
  window.addEventListener("hashchange", show);
  show();
}

/** Shows that the user may not see the page, or not from this address. */
function refuse(error) {
  link.hidden = true;
  const isToken = error.reason === "INSUFFICIENT_SCOPE";
  const again = h(
    "button",
    { type: "button", class: "primary", onclick: () => leaveButton.click() },
    "Use another token",
  );
  const title = isToken ? "Not for this token" : "Not from here";
  main.replaceChildren(empty(title, error.message, isToken ? again : null));
}

start();
