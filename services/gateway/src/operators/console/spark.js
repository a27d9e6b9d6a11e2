// Small bar charts of counts over time.

import { h, svg } from "./dom.js";
import { count, date, hour, plural, sum } from "./format.js";

const HEIGHT = 20;

function bars(values, top, width = 1, base = null) {
  let path = "";
  values.forEach((value, at) => {
    if (!value) return;
    const from = base ? base[at] : 0;
    // The smallest bar stays visible.
    const size = Math.max((value / top) * HEIGHT, HEIGHT * 0.08);
    path += `M${at + 0.08} ${HEIGHT - (from / top) * HEIGHT}h${width - 0.16}v${-size}h${-(width - 0.16)}z`;
  });
  return path;
}

/** One series; `bad` is drawn over `all` in the colour of failures. */
export function spark(what, wide = false) {
  const all = svg("path", { class: "spark-all" });
  const bad = svg("path", { class: "spark-bad" });
  const title = svg("title");
  const el = svg(
    "svg",
    {
      class: wide ? "spark wide" : "spark",
      role: "img",
      preserveAspectRatio: "none",
      viewBox: `0 0 60 ${HEIGHT}`,
    },
    title,
    all,
    bad,
  );
  return {
    el,
    update(values = [], failed = []) {
      const length = Math.max(values.length, failed.length, 1);
      const top = Math.max(1, ...values, ...failed);
      el.setAttribute("viewBox", `0 0 ${length} ${HEIGHT}`);
      all.setAttribute("d", bars(values, top));
      bad.setAttribute("d", bars(failed, top));
      const text = `${what}: ${plural(sum(values), "task", "tasks")}${failed.length ? `, ${count(sum(failed))} failed` : ""}`;
      if (title.textContent !== text) title.textContent = text;
      el.setAttribute("aria-label", text);
    },
  };
}

/**
 * Stacked bars with an axis: `series` are `{ name, tone, values }`, the first at the bottom.
 * `href(from, to)` is the link of a bar.
 */
export function chart({ series, from, bucketMs, href, label }) {
  const length = Math.max(1, ...series.map((one) => one.values.length));
  const totals = Array.from({ length }, (_, at) => sum(series.map((one) => one.values[at] ?? 0)));
  const top = Math.max(1, ...totals);
  const base = new Array(length).fill(0);
  const paths = series.map((one) => {
    const values = Array.from({ length }, (_, at) => one.values[at] ?? 0);
    const path = svg("path", {
      class: "chart-bar",
      "data-series": one.tone,
      d: bars(values, top, 1, [...base]),
    });
    values.forEach((value, at) => (base[at] += value));
    return path;
  });
  const hits = totals.map((total, at) => {
    const start = from + at * bucketMs;
    const text = `${date(start)} – ${hour(start + bucketMs)}: ${plural(total, "task", "tasks")} failed`;
    const rect = svg(
      "rect",
      { class: "chart-hit", x: at, y: 0, width: 1, height: HEIGHT },
      svg("title", null, text),
    );
    if (total === 0) return rect;
    return svg(
      "a",
      { href: href(start, start + bucketMs), "aria-label": text, tabindex: "-1" },
      rect,
    );
  });
  const long = length * bucketMs > 86_400_000;
  const tell = long ? date : hour;
  const ends = [from, from + (length / 2) * bucketMs, from + length * bucketMs];
  return h(
    "figure",
    { class: "chart" },
    h("span", { class: "chart-top", "aria-hidden": "true" }, count(top)),
    svg(
      "svg",
      {
        viewBox: `0 0 ${length} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": label,
      },
      ...paths,
      ...hits,
    ),
    h(
      "figcaption",
      { "aria-hidden": "true" },
      ...ends.map((end, at) => h("span", null, at === 2 ? "now" : tell(end))),
    ),
  );
}
