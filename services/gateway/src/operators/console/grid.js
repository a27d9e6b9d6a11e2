// A virtual table: only visible rows have elements. All rows have the same height, and elements are
// reused while scrolling.

import { h } from "./dom.js";

const SPARE = 6;

export class Grid {
  /**
   * `make()` returns `{ el, show(item) }`, `open(item)` handles click and Enter, and `near()` is
   * is called when the end comes into view.
   */
  constructor({ label, columns, make, open, near }) {
    this.items = [];
    this.make = make;
    this.open = open;
    this.near = near;
    this.pool = [];
    this.active = -1;
    this.asked = 0;
    const heads = columns.map((column) =>
      h("span", { role: "columnheader", class: `c-${column.key}` }, column.name),
    );
    this.canvas = h("div", { class: "grid-rows", role: "rowgroup" });
    this.head = h(
      "div",
      { role: "rowgroup" },
      h("div", { class: "grid-head", role: "row" }, ...heads),
    );
    this.foot = h("div", { class: "grid-foot" });
    this.el = h(
      "div",
      { class: "grid", role: "grid", tabindex: "0", "aria-label": label, "aria-readonly": "true" },
      this.head,
      this.canvas,
      this.foot,
    );
    this.el.addEventListener("scroll", () => this.draw(), { passive: true });
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.watcher = new ResizeObserver(() => this.measure());
    this.watcher.observe(this.el);
  }

  get atTop() {
    return this.el.scrollTop < this.height;
  }

  measure() {
    const height = Number.parseFloat(getComputedStyle(this.el).getPropertyValue("--row")) || 32;
    this.height = height;
    this.layout();
  }

  /** Replaces or reorders the items and keeps the selection. */
  replace(items) {
    const chosen = this.items[this.active];
    this.items = items;
    if (chosen) this.active = items.indexOf(chosen);
    this.layout();
  }

  /** Call after `items` has grown. */
  layout() {
    if (!this.height) return;
    this.canvas.style.height = `${this.items.length * this.height}px`;
    this.el.setAttribute("aria-rowcount", this.items.length + 1);
    for (const row of this.pool) row.index = null;
    this.draw();
  }

  draw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const { height, items } = this;
    if (!height) return;
    const seen = Math.ceil(this.el.clientHeight / height) + 1;
    const first = Math.max(0, Math.floor(this.el.scrollTop / height) - SPARE);
    const end = Math.min(items.length, first + seen + 2 * SPARE);
    const wanted = Math.min(items.length, seen + 2 * SPARE);
    while (this.pool.length < wanted) this.grow();
    const size = this.pool.length;
    for (const row of this.pool) row.used = false;
    for (let index = first; index < end; index += 1) {
      const row = this.pool[index % size];
      row.used = true;
      if (row.index === index && row.item === items[index]) continue;
      this.place(row, index);
    }
    for (const row of this.pool) row.el.hidden = !row.used;
    if (end > items.length - seen) this.near();
  }

  grow() {
    const row = { ...this.make(), index: null, item: null };
    row.el.setAttribute("role", "row");
    this.canvas.append(row.el);
    this.pool.push(row);
    for (const other of this.pool) other.index = null;
  }

  place(row, index) {
    row.index = index;
    row.item = this.items[index];
    row.el.style.transform = `translateY(${index * this.height}px)`;
    row.el.id = `row-${index}`;
    row.el.setAttribute("aria-rowindex", index + 2);
    this.mark(row);
    row.show(row.item);
  }

  mark(row) {
    const is = row.index === this.active;
    row.el.classList.toggle("active", is);
    row.el.setAttribute("aria-selected", is);
  }

  /** Call after an item has changed in place. */
  redraw(item) {
    const row = this.pool.find((one) => one.used && one.item === item);
    row?.show(item);
  }

  select(index) {
    this.active = Math.max(-1, Math.min(index, this.items.length - 1));
    for (const row of this.pool) this.mark(row);
    if (this.active < 0) {
      this.el.removeAttribute("aria-activedescendant");
      return;
    }
    const [top, head] = [this.active * this.height, this.head.offsetHeight];
    const view = this.el.clientHeight - head;
    if (top < this.el.scrollTop) this.el.scrollTop = top;
    else if (top + this.height > this.el.scrollTop + view)
      this.el.scrollTop = top + this.height - view;
    this.el.setAttribute("aria-activedescendant", `row-${this.active}`);
    this.drawNow();
  }

  move(step) {
    this.el.focus({ preventScroll: true });
    // The first selection is at the scroll position, not at the beginning.
    const seen = Math.ceil(this.el.scrollTop / this.height);
    this.select(this.active < 0 ? seen : Math.max(0, this.active + step));
  }

  openActive() {
    const item = this.items[this.active];
    if (item) this.open(item);
  }

  click(event) {
    if (event.target.closest("a") || event.ctrlKey || event.metaKey) return;
    const row = this.pool.find((one) => one.el.contains(event.target));
    if (row?.item && String(getSelection()) === "") this.open(row.item);
  }

  close() {
    this.watcher.disconnect();
    cancelAnimationFrame(this.asked);
  }
}
