// The status page: asks for the steps since the last look, four times a second, and only while it is visible.

const POLL_MS = 250;
const RETRY_MS = 2000;
const STEPS_PER_LOOK = 128;
const RATE_WINDOW_S = 3;
const DENSE_ABOVE = 128; // seats
const BAR_WIDTH = 5; // pixels of the canvas for one step
const LIST_LENGTH = 8;
const STALE_STEPS = 64; // a seat not seen for so many steps is taken for empty

const element = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");

const state = {
  next: -1,
  steps: [], // the newest last
  seats: new Map(), // seat → {id, phase, end, total, step}
  finished: [], // the newest first
  deferred: new Map(), // request → {why, step}
  stats: null,
  cells: [],
  key: sessionStorage.getItem("hotseat-key") || "",
};

// ---- what the steps tell ----

function learn(body) {
  const { steps, stats } = body;
  const hasGap = steps.length > 0 && state.next >= 0 && steps[0].step > state.next + 1;
  const restarted = body.next < state.next;
  if (hasGap || restarted) state.seats.clear();
  if (restarted) state.steps = [];
  state.next = body.next;
  state.stats = stats;
  for (const step of steps) learnStep(step);
  state.steps = state.steps.concat(steps).slice(-600);
  if (stats.num_running === 0) state.seats.clear();
  if (stats.num_waiting === 0) state.deferred.clear();
  for (const [seat, taken] of state.seats) {
    if (state.next - taken.step > STALE_STEPS) state.seats.delete(seat);
  }
}

function learnStep(step) {
  const leaving = new Set([...step.finished, ...step.preempted].map((item) => item.id));
  for (const { id, seat, phase, end, total } of step.scheduled) {
    state.seats.set(seat, { id, phase, end, total, step: step.step });
  }
  for (const [seat, taken] of state.seats) {
    if (!leaving.has(taken.id)) continue;
    // Who was preempted and seated again in the same step is scheduled in it and stays.
    const wasPreempted = step.preempted.some((item) => item.id === taken.id);
    if (!wasPreempted || taken.step !== step.step) {
      const item = step.finished.find((one) => one.id === taken.id);
      if (item) item.tokens = taken.end + 1; // with the one sampled last
      state.seats.delete(seat);
    }
  }
  for (const id of step.admitted) state.deferred.delete(id);
  for (const { id } of step.finished) state.deferred.delete(id);
  for (const { id, why } of step.deferred) state.deferred.set(id, { why, step: step.step });
  for (const item of step.finished) state.finished.unshift(item);
  state.finished.length = Math.min(state.finished.length, LIST_LENGTH);
}

function rates() {
  const now = state.stats.now_s;
  const recent = state.steps.filter((step) => now - (step.start_s + step.duration_s) < RATE_WINDOW_S);
  let output = 0;
  let prompt = 0;
  let busy_s = 0;
  for (const step of recent) {
    busy_s += step.duration_s;
    for (const chunk of step.scheduled) {
      if (chunk.phase === "decode") output += 1;
      else {
        prompt += chunk.end - chunk.start;
        if (chunk.end === chunk.total) output += 1; // the last chunk of a prompt gives the first token
      }
    }
  }
  return {
    output: output / RATE_WINDOW_S,
    prompt: prompt / RATE_WINDOW_S,
    step_ms: recent.length ? (busy_s / recent.length) * 1000 : null,
  };
}

// ---- drawing ----

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// "cmpl-1f2e3d4c…-p2.17/1" is sequence 1 of prompt 2 of an answer: "1f2e3d-p2/1".
const shortId = (id) => {
  const [, answer, prompt, sequence] = /^(?:[a-z]+-)?([^.-]*)(-p\d+)?[^/]*(\/\d+)?/.exec(id);
  return answer.slice(0, 6) + (prompt ?? "") + (sequence ?? "");
};
const short = (value) => (value === 0 || value >= 100 ? number.format(Math.round(value)) : value.toFixed(value >= 10 ? 0 : 1));

function draw() {
  const { stats } = state;
  setText(element("model"), stats.model);
  setStatus(stats.alive ? "ok" : "sick", stats.alive ? (stats.num_running ? "working" : "idle") : stats.reason);
  setText(element("busy"), number.format(stats.num_running));
  setText(element("seats-total"), number.format(stats.max_num_seqs));
  setText(element("waiting"), number.format(stats.num_waiting));
  const { output, prompt, step_ms } = rates();
  setText(element("out-rate"), short(output));
  setText(element("in-rate"), short(prompt));
  setText(element("step-time"), step_ms === null ? "–" : short(step_ms));
  drawCache();
  drawSeats();
  drawSteps();
  drawLists();
}

function drawCache() {
  const last = state.steps.at(-1);
  if (!last) return;
  const total = last.blocks_used + last.blocks_free;
  const used = state.stats.num_running || state.stats.num_waiting ? last.blocks_used : 0;
  const [usedBar, cachedBar] = element("kv-bar").children;
  usedBar.style.width = `${(100 * used) / total}%`;
  cachedBar.style.width = `${(100 * Math.min(last.blocks_cached, total - used)) / total}%`;
  setText(element("kv-text"), `${number.format(used)} of ${number.format(total)} blocks`);
}

function makeCell(seat) {
  const cell = document.createElement("li");
  const parts = {};
  const add = (parent, name, tag = "span") => {
    const node = document.createElement(tag);
    node.className = name;
    parent.append(node);
    parts[name] = node;
    return node;
  };
  const who = add(cell, "who", "div");
  setText(add(who, "seat"), String(seat));
  add(who, "id");
  const what = add(cell, "what", "div");
  add(what, "phase");
  add(what, "count");
  add(add(cell, "fill", "div"), "level", "div");
  element("seats").append(cell);
  return { cell, ...parts };
}

function drawSeats() {
  const count = state.stats.max_num_seqs;
  if (state.cells.length !== count) {
    element("seats").replaceChildren();
    element("seats").classList.toggle("dense", count > DENSE_ABOVE);
    state.cells = Array.from({ length: count }, (_, seat) => makeCell(seat));
  }
  state.cells.forEach((parts, seat) => drawSeat(parts, state.seats.get(seat)));
}

function drawSeat(parts, taken) {
  const kind = taken ? taken.phase : "free";
  if (parts.cell.className !== kind) parts.cell.className = kind;
  setText(parts.id, taken ? shortId(taken.id) : "");
  parts.cell.title = taken ? taken.id : "";
  if (!taken) return;
  const isPrefill = taken.phase === "prefill";
  setText(parts.phase, taken.phase);
  setText(parts.count, isPrefill ? `${number.format(taken.end)}/${number.format(taken.total)}` : number.format(taken.end));
  const whole = isPrefill ? taken.total : state.stats.max_model_len;
  parts.level.style.width = `${Math.min(100, (100 * taken.end) / whole)}%`;
}

function drawSteps() {
  const canvas = element("steps");
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const shown = state.steps.slice(-Math.floor((width - 16) / BAR_WIDTH));
  const most = Math.max(1, ...shown.map(tokensOf));
  const unit = (height - 16) / most;
  shown.forEach((step, index) => {
    const x = width - 8 - (shown.length - index) * BAR_WIDTH;
    const decode = step.scheduled.filter((chunk) => chunk.phase === "decode").length;
    const prefill = tokensOf(step) - decode;
    const bars = [[decode, "--decode"], [prefill, "--prefill"]];
    let y = height - 8;
    for (const [tokens, name] of bars) {
      if (!tokens) continue;
      const tall = Math.max(1.5, tokens * unit);
      pen.fillStyle = color(name);
      pen.fillRect(x, y - tall, BAR_WIDTH - 1, tall);
      y -= tall;
    }
    if (step.preempted.length) {
      pen.fillStyle = color("--bad");
      pen.fillRect(x, 2, BAR_WIDTH - 1, 4);
    }
  });
  const last = shown.at(-1);
  if (last) {
    const text = `newest at the right · step ${number.format(last.step)} · highest bar ${number.format(most)} of ${number.format(last.budget)} tokens offered`;
    setText(element("steps-text"), text);
  }
}

const tokensOf = (step) => step.scheduled.reduce((sum, chunk) => sum + chunk.end - chunk.start, 0);

function drawLists() {
  const held = [...state.deferred].slice(-LIST_LENGTH).map(([id, { why }]) => [shortId(id), why, "", id]);
  const inTurn = state.stats.num_waiting - held.length;
  const queue = inTurn > 0 ? [[number.format(inTurn), "wait for a seat", "", ""], ...held] : held;
  fillList(element("queue"), queue, "nobody waits");
  const finished = state.finished.map(({ id, reason, tokens }) => {
    const text = tokens ? `${reason}, ${number.format(tokens)} tokens in all` : reason;
    return [shortId(id), text, reason, id];
  });
  fillList(element("finished"), finished, "nobody yet");
}

function fillList(list, rows, none) {
  const signature = JSON.stringify(rows);
  if (list.dataset.signature === signature) return;
  list.dataset.signature = signature;
  list.replaceChildren(...(rows.length ? rows.map(makeRow) : [makeNone(none)]));
}

function makeRow([name, text, kind, title]) {
  const row = document.createElement("li");
  const code = document.createElement("code");
  code.textContent = name;
  code.title = title;
  const what = document.createElement("span");
  what.textContent = text;
  what.className = kind;
  row.append(code, what);
  return row;
}

function makeNone(text) {
  const row = document.createElement("li");
  row.className = "none";
  row.textContent = text;
  return row;
}

function setStatus(name, text) {
  element("status").dataset.state = name;
  setText(element("status-text"), text);
}

// ---- asking ----

async function look() {
  const since = state.next;
  const headers = state.key ? { authorization: `Bearer ${state.key}` } : {};
  const response = await fetch(`v1/steps?since=${since}&limit=${STEPS_PER_LOOK}`, { headers, cache: "no-store" });
  const isLocked = response.status === 401;
  element("key-form").hidden = !isLocked;
  if (isLocked) {
    setStatus("locked", "locked");
    return RETRY_MS;
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  learn(await response.json());
  draw();
  return POLL_MS;
}

let timer = null;
let isLooking = false;

async function tick() {
  if (isLooking || document.hidden) return;
  clearTimeout(timer);
  isLooking = true;
  let pause = RETRY_MS;
  try {
    pause = await look();
  } catch {
    setStatus("gone", "no answer from the server");
  }
  isLooking = false;
  if (!document.hidden) timer = setTimeout(tick, pause);
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = element("key").value;
  sessionStorage.setItem("hotseat-key", state.key);
  tick();
});
document.addEventListener("visibilitychange", tick);
window.addEventListener("resize", () => state.stats && draw());
tick();
