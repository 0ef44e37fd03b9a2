// What the page says of one request, and the lists of those that wait and that have left.

import { shortId } from "./records.js";

const number = new Intl.NumberFormat("en");

export const element = (id) => document.getElementById(id);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  return `${number.format(Math.round(value / 60))} min`;
}

export const count = (value, noun) => `${number.format(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Return one line that names a cell: of the timeline's cursor, or under the pointer. */
export function describeCell(cell) {
  if (!cell) return "";
  const place = `step ${number.format(cell.step.step)}, seat ${cell.seat}`;
  if (!cell.chunk) return `${place}: empty`;
  const { id, phase, start, end, total, drafts = 0, accepted = 0 } = cell.chunk;
  const mark = cell.step.marks.get(id);
  const what =
    phase === "decode"
      ? `decode, token ${number.format(end - drafts + accepted)}${drafts ? `, ${accepted} of ${drafts} drafts accepted` : ""}`
      : `prefill ${number.format(start)} to ${number.format(end)} of ${number.format(total)}`;
  const length = seconds(cell.step.duration_s);
  return `${place}: ${shortId(id)}, ${what}${mark ? `, ${mark}` : ""}; step of ${length}`;
}

/** Replace the rows of a list, but only when they changed: what the pointer or a reader is at stays. */
export function fillList(list, rows, none, open) {
  const signature = JSON.stringify(rows);
  if (list.dataset.signature === signature) return;
  list.dataset.signature = signature;
  const nodes = rows.map((row) => makeRow(row, open));
  list.replaceChildren(...(nodes.length ? nodes : [makeNone(none)]));
}

function makeRow({ id, text, kind }, open) {
  const row = document.createElement("li");
  if (id) row.append(requestButton(id, open));
  const what = document.createElement("span");
  what.textContent = text;
  if (kind) what.className = kind;
  row.append(what);
  return row;
}

function requestButton(id, open) {
  const button = document.createElement("button");
  button.className = "link";
  button.textContent = shortId(id);
  button.title = id;
  button.addEventListener("click", () => open(id));
  return button;
}

function makeNone(text) {
  const row = document.createElement("li");
  row.className = "none";
  row.textContent = text;
  return row;
}

/** The panel that explains one request: the server's words, its steps, its neighbours. */
export class Details {
  constructor(records, ask, onOpen) {
    this.records = records;
    this.ask = ask;
    this.onOpen = onOpen;
    this.id = null;
    element("close").addEventListener("click", () => this.close());
  }

  async open(id) {
    this.id = id;
    this.onOpen(id);
    element("details").hidden = false;
    setText(element("details-title"), id);
    await this.refresh();
    element("details").focus({ preventScroll: true });
  }

  close() {
    this.id = null;
    element("details").hidden = true;
    this.onOpen(null);
    element("timeline").focus({ preventScroll: true });
  }

  async refresh() {
    const id = this.id;
    if (id === null) return;
    let sequence = null;
    try {
      const response = await this.ask(`v1/requests/${encodeURIComponent(id)}/explain`);
      if (response.ok) sequence = (await response.json()).sequences.find((one) => one.request_id === id) ?? null;
    } catch {
      // the picture still knows the request's steps
    }
    if (id === this.id) this.#show(id, sequence);
  }

  #show(id, sequence) {
    const facts = [...(sequence ? factsOf(sequence) : []), ...this.#stepsOf(id)];
    element("facts").replaceChildren(
      ...facts.flatMap(([name, text]) => {
        const term = document.createElement("dt");
        const value = document.createElement("dd");
        term.textContent = name;
        value.textContent = text;
        return [term, value];
      }),
    );
    const neighbours = this.records.neighboursOf(id).slice(0, 8);
    const rows = neighbours.map(([other, steps]) => ({ id: other, text: `${count(steps, "step")} together` }));
    fillList(element("neighbours"), rows, "it sat alone", (other) => this.open(other));
  }

  #stepsOf(id) {
    const request = this.records.requests.get(id);
    if (!request) return [["steps", "none among the kept ones"]];
    const steps = this.records.steps.filter((step) => step.scheduled.some((chunk) => chunk.id === id));
    if (!steps.length) return [["steps", "none yet"]];
    const decodes = steps.filter((step) => step.scheduled.some((one) => one.id === id && one.phase === "decode")).length;
    const text = `${number.format(steps[0].step)} to ${number.format(steps.at(-1).step)}: ` +
      `${count(steps.length - decodes, "prefill chunk")}, ${count(decodes, "decode")}`;
    const lost = request.preemptions.map(({ step, cause }) => `step ${number.format(step)}: ${cause}`);
    return [["steps", text], ...(lost.length ? [["preempted", lost.join("; ")]] : [])];
  }
}

function factsOf(one) {
  const facts = [["status", one.finish_reason ? `finished: ${one.finish_reason}` : `${one.status}: ${one.reason}`]];
  if (one.error) facts.push(["error", one.error]);
  const cached = one.num_cached_tokens ? `, ${number.format(one.num_cached_tokens)} of them cached` : "";
  facts.push(["prompt", `${count(one.num_prompt_tokens, "token")}${cached}`]);
  facts.push(["answer", count(one.num_output_tokens, "token")]);
  if (one.num_ahead !== null && one.num_ahead !== undefined) facts.push(["ahead of it", count(one.num_ahead, "request")]);
  const waits = Object.entries(one.waited_s).filter(([, value]) => value > 0);
  const waited = waits.map(([reason, value]) => `${seconds(value)} for ${reason}`).join(", ");
  facts.push(["waited", waited || "not at all"]);
  if (one.times_passed) {
    const others = one.passed_by.map(shortId).join(", ");
    facts.push(["overtaken", `${count(one.times_passed, "time")}${others ? `, last by ${others}` : ""}`]);
  }
  if (one.ttft_s !== null && one.ttft_s !== undefined) facts.push(["first token", `${seconds(one.ttft_s)} after its arrival`]);
  if (one.num_preemptions) facts.push(["preemptions", `${one.num_preemptions}: ${one.preempted_by.join("; ")}`]);
  return facts;
}
