// The status page: asks for the steps since the last look, four times a second, and only while it is visible.

import { FirstTokenTimes, drawCurves } from "./curves.js";
import { Details, count, describeCell, element, fillList, seconds, setText } from "./details.js";
import { Records } from "./records.js";
import { Timeline } from "./timeline.js";

const POLL_MS = 250;
const RETRY_MS = 2000;
const SLOW_MS = 1000; // queue and explanation
const METRICS_MS = 2000;
const STEPS_PER_LOOK = 1024;
const QUEUE_LENGTH = 12;
const ENDED_LENGTH = 12;

const number = new Intl.NumberFormat("en");
const records = new Records();
const timeline = new Timeline(element("timeline"), records);
const details = new Details(records, ask, (id) => {
  timeline.selected = id;
  timeline.draw();
});
const firstTokens = new FirstTokenTimes();
const state = { stats: null, key: sessionStorage.getItem("hotseat-key") || "", slowAt: 0, metricsAt: 0, waiting: [] };
const open = (id) => details.open(id);

// ---- drawing ----

function draw() {
  const { stats } = state;
  drawHeader(stats);
  const isQuiet = stats.num_running === 0 && stats.num_waiting === 0;
  drawCurves(records, stats.now_s, { waiting: stats.num_waiting, ...(isQuiet ? { kv: 0 } : {}) });
  drawCache(stats);
  drawTimeline();
  drawQueue(stats);
  const ended = [...records.requests.values()].filter((one) => one.ended !== undefined);
  const rows = ended
    .sort((a, b) => b.ended - a.ended)
    .slice(0, ENDED_LENGTH)
    .map(({ id, reason, ended: step }) => ({ id, text: `${reason}, step ${number.format(step)}`, kind: reason }));
  fillList(element("finished"), rows, "none yet", open);
}

function drawHeader(stats) {
  const parts = [stats.model, stats.dtype, stats.policy && `policy ${stats.policy}`].filter(Boolean);
  setText(element("model"), parts.join(" · "));
  const uptime = stats.uptime_s === undefined || stats.uptime_s === null ? "" : `up ${seconds(stats.uptime_s)}`;
  setText(element("version"), [stats.version && `version ${stats.version}`, uptime].filter(Boolean).join(", "));
  setStatus(stats.alive ? "ok" : "sick", stats.alive ? (stats.num_running ? "working" : "idle") : stats.reason);
  setText(element("busy"), number.format(stats.num_running));
  setText(element("seats-total"), number.format(stats.max_num_seqs));
}

function drawCache(stats) {
  const last = records.steps.at(-1);
  if (!last) return;
  const total = last.blocks_used + last.blocks_free;
  const used = stats.num_running || stats.num_waiting ? last.blocks_used : 0;
  const [usedBar, cachedBar] = element("kv-bar").children;
  usedBar.style.width = `${(100 * used) / total}%`;
  cachedBar.style.width = `${(100 * Math.min(last.blocks_cached, total - used)) / total}%`;
  setText(element("kv-text"), `${number.format(used)} of ${number.format(total)} blocks`);
}

function drawTimeline() {
  timeline.draw();
  const { steps } = records;
  const folded = (state.stats?.max_num_seqs ?? 0) - timeline.rows.length;
  const shown = steps.slice(timeline.startIndex, timeline.endIndex);
  if (!shown.length) {
    setText(element("timeline-text"), "no step yet");
    return;
  }
  const range = `steps ${number.format(shown[0].step)} to ${number.format(shown.at(-1).step)}`;
  const kept = `${number.format(steps.length)} kept`;
  const lost = records.numLost ? `, ${count(records.numLost, "step")} missed` : "";
  const empty = folded > 0 ? `; ${count(folded, "empty seat")} folded` : "";
  setText(element("timeline-text"), `${range}, ${kept}${lost}${empty}`);
  element("pause").setAttribute("aria-pressed", String(timeline.newest !== null));
  setText(element("pause"), timeline.newest === null ? "Pause" : "Follow");
}

// The queue as it is now: what /v1/requests says of each that waits, not what an old step said.
function drawQueue(stats) {
  const rows = state.waiting.slice(0, QUEUE_LENGTH).map((one) => {
    const age = Object.values(one.waited_s).reduce((sum, value) => sum + value, 0);
    return { id: one.request_id, text: `${one.reason}, for ${seconds(age)}` };
  });
  const more = stats.num_waiting - rows.length;
  if (more > 0 && rows.length) rows.push({ text: `and ${number.format(more)} more` });
  fillList(element("queue"), stats.num_waiting ? rows : [], stats.num_waiting ? "…" : "empty", open);
}

function setStatus(name, text) {
  element("status").dataset.state = name;
  setText(element("status-text"), text);
}

// ---- asking ----

function ask(path) {
  const headers = state.key ? { authorization: `Bearer ${state.key}` } : {};
  return fetch(path, { headers, cache: "no-store" });
}

async function look() {
  const response = await ask(`v1/steps?since=${records.next}&limit=${STEPS_PER_LOOK}`);
  const isLocked = response.status === 401 || response.status === 403;
  element("key-form").hidden = !isLocked;
  if (isLocked) {
    setStatus("locked", "locked");
    return RETRY_MS;
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  const body = await response.json();
  records.add(body);
  state.stats = body.stats;
  await lookSlowly(performance.now());
  draw();
  return body.steps.length === STEPS_PER_LOOK ? 0 : POLL_MS;
}

async function lookSlowly(now) {
  if (now - state.slowAt >= SLOW_MS) {
    state.slowAt = now;
    state.waiting = state.stats.num_waiting ? await waitingRequests() : [];
    await details.refresh();
  }
  if (now - state.metricsAt >= METRICS_MS) {
    state.metricsAt = now;
    const response = await ask("metrics");
    if (response.ok) firstTokens.add(await response.text(), state.stats.now_s);
    firstTokens.draw();
  }
}

async function waitingRequests() {
  const response = await ask(`v1/requests?status=waiting&limit=${QUEUE_LENGTH}`);
  if (!response.ok) return [];
  const { data } = await response.json();
  return data.flatMap((answer) => answer.sequences).filter((one) => one.status === "waiting");
}

let timer = 0;
let isLooking = false;

async function tick() {
  clearTimeout(timer);
  if (document.hidden || isLooking) return;
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

// ---- pointer and keyboard ----

const say = (cell) => setText(element("cell"), describeCell(cell));
const canvas = element("timeline");

function cellOf(event) {
  const box = canvas.getBoundingClientRect();
  return timeline.cellAt(event.clientX - box.left, event.clientY - box.top);
}

canvas.addEventListener("pointermove", (event) => say(cellOf(event)));
canvas.addEventListener("click", (event) => {
  const cell = cellOf(event);
  if (cell?.chunk) open(cell.chunk.id);
});
canvas.addEventListener(
  "wheel",
  (event) => {
    if (event.ctrlKey) timeline.zoomBy(event.deltaY < 0 ? 1 : -1);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      timeline.scrollBy(Math.round((event.deltaX || event.deltaY) / timeline.columnWidth));
    } else return; // the page scrolls
    event.preventDefault();
    drawTimeline();
  },
  { passive: false },
);

const page = () => timeline.numColumns - 1;
const KEYS = {
  ArrowLeft: () => say(timeline.moveCursor(-1, 0)),
  ArrowRight: () => say(timeline.moveCursor(1, 0)),
  ArrowUp: () => say(timeline.moveCursor(0, -1)),
  ArrowDown: () => say(timeline.moveCursor(0, 1)),
  PageUp: () => timeline.scrollBy(-page()),
  PageDown: () => timeline.scrollBy(page()),
  Home: () => timeline.scrollBy(-records.steps.length),
  End: () => timeline.follow(),
  "+": () => timeline.zoomBy(1),
  "-": () => timeline.zoomBy(-1),
  " ": () => togglePause(),
  Enter: () => {
    const chunk = timeline.moveCursor(0, 0)?.chunk;
    if (chunk) open(chunk.id);
  },
  Escape: () => details.id !== null && details.close(),
};

canvas.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
  drawTimeline();
});

function togglePause() {
  if (timeline.newest === null) timeline.freeze();
  else timeline.follow();
}

const BUTTONS = {
  older: () => timeline.scrollBy(-page()),
  newer: () => timeline.scrollBy(page()),
  "zoom-in": () => timeline.zoomBy(1),
  "zoom-out": () => timeline.zoomBy(-1),
  pause: togglePause,
};
for (const [id, act] of Object.entries(BUTTONS)) {
  element(id).addEventListener("click", () => {
    act();
    drawTimeline();
  });
}

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = element("key").value;
  sessionStorage.setItem("hotseat-key", state.key);
  tick();
});
document.addEventListener("visibilitychange", tick);
document.addEventListener("keydown", (event) => event.key === "Escape" && details.id !== null && details.close());
window.addEventListener("resize", () => state.stats && draw());
tick();
