// Small curves over the last minutes.

import { quantile } from "./records.js";
import { element, seconds, setText } from "./details.js";

const SPAN_S = 120;
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const percent = (value) => `${Math.round(100 * value)} %`;

// [id, text of the newest value, value of a bucket, second value of a bucket]
const CURVES = [
  ["out-rate", (value) => short.format(value), (bucket) => bucket.outputs],
  ["in-rate", (value) => short.format(value), (bucket) => bucket.tokens - bucket.outputs],
  ["step-time", seconds, (bucket) => (bucket.steps ? bucket.busy_s / bucket.steps : null)],
  ["itl", seconds, (bucket) => quantile(bucket.gaps, 0.5), (bucket) => quantile(bucket.gaps, 0.99)],
  ["waiting", (value) => short.format(value), (bucket) => (bucket.steps ? bucket.waiting : null)],
  ["kv", percent, (bucket) => (bucket.steps ? bucket.used : null)],
  ["budget", percent, (bucket) => (bucket.offered ? bucket.tokens / bucket.offered : null)],
];

/** Draw all curves that come from steps. ``present`` holds newer values of some: {id: value}. */
export function drawCurves(records, now_s, present) {
  const buckets = records.buckets(now_s, SPAN_S);
  for (const [id, text, first, second] of CURVES) {
    const lines = [buckets.map(first), ...(second ? [buckets.map(second)] : [])];
    drawCurve(id, lines);
    const newest = id in present ? [present[id]] : lines.map((line) => line.at(-1) ?? null);
    setText(element(id), newest.map((value) => (value === null ? "–" : text(value))).join(" / "));
  }
}

function drawCurve(id, lines) {
  const picture = element(`${id}-curve`);
  const top = Math.max(...lines.flat().map((value) => value ?? 0));
  const paths = lines.map((line) => pathOf(line, top));
  [...picture.children].forEach((path, index) => path.setAttribute("d", paths[index] ?? ""));
}

// A line in a box of 100 × 24; where nothing was measured, it is broken.
function pathOf(values, top) {
  let isDown = false;
  const parts = values.map((value, index) => {
    if (value === null) {
      isDown = false;
      return "";
    }
    const x = (100 * index) / (values.length - 1);
    const y = 23 - (22 * value) / (top || 1);
    const part = `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
    return part;
  });
  return parts.join("");
}

/** Time to first token, read from the histogram of /metrics: quantiles of what came within the last minutes. */
export class FirstTokenTimes {
  constructor() {
    this.samples = []; // {at_s, buckets: [[upper bound, count up to it]]}, oldest first
    this.line = [[], []];
  }

  add(text, now_s) {
    const pattern = /^\w+:time_to_first_token_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} ([\d.e+]+)$/gm;
    const found = new Map();
    for (const [, bound, total] of text.matchAll(pattern)) {
      found.set(bound === "+Inf" ? Infinity : Number(bound), Number(total));
    }
    if (!found.size) return;
    this.samples.push({ at_s: now_s, buckets: [...found].sort((a, b) => a[0] - b[0]) });
    while (this.samples.length > 2 && now_s - this.samples[0].at_s > SPAN_S) this.samples.shift();
    this.line.forEach((line, index) => {
      line.push(this.quantile(index ? 0.99 : 0.5));
      if (line.length > SPAN_S / 2) line.shift();
    });
  }

  /** Return an upper bound of the quantile over the samples kept, or null when no request got a first token. */
  quantile(share) {
    if (this.samples.length < 2) return null;
    const [first, last] = [this.samples[0].buckets, this.samples.at(-1).buckets];
    const counts = last.map(([bound, total], index) => [bound, total - (first[index]?.[1] ?? 0)]);
    const all = counts.at(-1)[1];
    if (!all) return null;
    const bound = counts.find(([, total]) => total >= share * all)[0];
    return Number.isFinite(bound) ? bound : counts.at(-2)[0];
  }

  draw() {
    drawCurve("ttft", this.line);
    const [half, most] = this.line.map((line) => line.at(-1) ?? null);
    setText(element("ttft"), half === null ? "–" : `≤ ${seconds(half)} / ${seconds(most)}`);
  }
}
