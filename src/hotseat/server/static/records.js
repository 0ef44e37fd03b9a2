// Step records as the page keeps them: the last steps, the requests in them, curves over time.

export const MAX_STEPS = 4096; // as many as the server keeps
const PAUSE_S = 0.05; // a longer time between two steps is drawn as a gap

/** The last steps, oldest first, and for each request of them its colour and its ends. */
export class Records {
  constructor() {
    this.steps = [];
    this.requests = new Map(); // id → {id, hue, admitted, ended, reason, preempted: number}
    this.next = -1;
    this.numLost = 0; // steps that the server had dropped before this page asked for them
  }

  /** Take the answer of /v1/steps in. Return whether it held anything new. */
  add(body) {
    if (body.next < this.next) this.clear(); // the server was started anew
    const steps = body.steps;
    if (!steps.length) return false;
    if (this.next >= 0 && steps[0].step > this.next + 1) this.numLost += steps[0].step - this.next - 1;
    this.next = body.next;
    for (const step of steps) this.#addStep(step);
    if (this.steps.length > MAX_STEPS) this.#dropOldest();
    return true;
  }

  clear() {
    this.steps = [];
    this.requests.clear();
    this.next = -1;
    this.numLost = 0;
  }

  #addStep(step) {
    const before = this.steps.at(-1);
    step.end_s = step.start_s + step.duration_s;
    step.gap_s = before ? step.start_s - before.end_s : 0;
    step.bySeat = new Map();
    for (const chunk of step.scheduled) {
      step.bySeat.set(chunk.seat, chunk);
      this.#request(chunk.id).last = step.step;
    }
    step.marks = new Map(); // id → "admitted", "preempted", "ended"
    for (const id of step.admitted) {
      this.#request(id).admitted ??= step.step;
      step.marks.set(id, "admitted");
    }
    for (const { id, cause } of step.preempted) {
      const request = this.#request(id);
      request.preemptions.push({ step: step.step, cause });
      if (step.marks.get(id) !== "admitted") step.marks.set(id, "preempted");
    }
    for (const { id, reason } of step.finished) {
      Object.assign(this.#request(id), { ended: step.step, reason });
      step.marks.set(id, "ended");
    }
    step.tokens = 0;
    step.outputs = 0;
    for (const chunk of step.scheduled) {
      step.tokens += chunk.end - chunk.start;
      // A decode gives a token and what it accepted of its drafts, and so does the last chunk of a prompt.
      if (chunk.phase === "decode" || chunk.end === chunk.total) step.outputs += 1 + (chunk.accepted ?? 0);
    }
    this.steps.push(step);
  }

  #request(id) {
    let request = this.requests.get(id);
    if (!request) {
      request = { id, hue: hueOf(id), preemptions: [], last: -1 };
      this.requests.set(id, request);
    }
    return request;
  }

  #dropOldest() {
    this.steps = this.steps.slice(-MAX_STEPS);
    const first = this.steps[0].step;
    for (const [id, request] of this.requests) {
      if (Math.max(request.last, request.ended ?? -1) < first) this.requests.delete(id);
    }
  }

  /** Return the seats in which something was computed in the kept steps, ascending. */
  usedSeats() {
    const seats = new Set();
    for (const step of this.steps) for (const seat of step.bySeat.keys()) seats.add(seat);
    return [...seats].sort((a, b) => a - b);
  }

  /** Return the index of a step number in ``steps``, or of the nearest kept one. */
  indexOf(number) {
    let low = 0;
    let high = this.steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle].step < number) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Return the requests that sat beside ``id``, those of the most common steps first: [[id, number of steps]]. */
  neighboursOf(id) {
    const counts = new Map();
    for (const step of this.steps) {
      if (!step.scheduled.some((chunk) => chunk.id === id)) continue;
      for (const chunk of step.scheduled) {
        if (chunk.id !== id) counts.set(chunk.id, (counts.get(chunk.id) ?? 0) + 1);
      }
    }
    return [...counts].sort((a, b) => b[1] - a[1]);
  }

  /** Return what the steps of the last ``seconds`` before ``now_s`` did, one entry for each ``width_s``. */
  buckets(now_s, seconds, width_s = 1) {
    const count = Math.round(seconds / width_s);
    const end = Math.floor(now_s / width_s) * width_s; // whole buckets only: the present one is not full yet
    const start = end - seconds;
    const buckets = Array.from({ length: count }, () => emptyBucket());
    for (let index = this.steps.length - 1; index >= 0; index -= 1) {
      const step = this.steps[index];
      if (step.end_s < start) break;
      const place = Math.floor((step.end_s - start) / width_s);
      if (place >= 0 && place < count) addToBucket(buckets[place], step);
    }
    this.#addGaps(buckets, start, width_s);
    return buckets;
  }

  // The time between two tokens of one request, from the ends of the steps that gave them.
  #addGaps(buckets, start, width_s) {
    const last = new Map();
    for (const step of this.steps) {
      for (const chunk of step.scheduled) {
        if (chunk.phase !== "decode" && chunk.end !== chunk.total) continue;
        const before = last.get(chunk.id);
        last.set(chunk.id, step.end_s);
        const place = Math.floor((step.end_s - start) / width_s);
        if (before !== undefined && place >= 0 && place < buckets.length) buckets[place].gaps.push(step.end_s - before);
      }
    }
  }
}

const emptyBucket = () => ({ outputs: 0, tokens: 0, offered: 0, busy_s: 0, steps: 0, waiting: 0, used: 0, gaps: [] });

function addToBucket(bucket, step) {
  bucket.outputs += step.outputs;
  bucket.tokens += step.tokens;
  bucket.offered += step.budget;
  bucket.busy_s += step.duration_s;
  bucket.steps += 1;
  bucket.waiting = Math.max(bucket.waiting, step.waiting);
  bucket.used = Math.max(bucket.used, step.blocks_used / (step.blocks_used + step.blocks_free));
}

/** Tell whether the server stood idle before ``step``: a gap in the picture. */
export const isAfterGap = (step) => step.gap_s > PAUSE_S;

/** Return a hue of its own for a request: FNV-1a of its id, so that a reload shows the same colours. */
export function hueOf(id) {
  let hash = 0x811c9dc5;
  for (let index = 0; index < id.length; index += 1) {
    hash = Math.imul(hash ^ id.charCodeAt(index), 0x01000193);
  }
  return (hash >>> 0) % 360;
}

/** Return the ``share`` quantile of ``values``, or null without any. */
export function quantile(values, share) {
  if (!values.length) return null;
  const ordered = Float64Array.from(values).sort();
  return ordered[Math.min(ordered.length - 1, Math.floor(share * ordered.length))];
}

// "cmpl-1f2e3d4c…-p2.17/1" is sequence 1 of prompt 2 of an answer: "1f2e3d-p2/1".
export const shortId = (id) => {
  const [, answer, prompt, sequence] = /^(?:[a-z]+-)?([^.-]*)(-p\d+)?[^/]*(\/\d+)?/.exec(id);
  return answer.slice(0, 6) + (prompt ?? "") + (sequence ?? "");
};
