// The chat page: one conversation, held by the page alone.

import { ApiFailure, explain, headers, streamChat } from "./chat_stream.js";

const FIRST_MS = 100;
const EXPLAIN_MS = 300;
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_tokens", "seed"];
const BOTTOM_PX = 80; // so near to the end one reads along

const element = (id) => document.getElementById(id);
const state = { messages: [], model: null, stopper: null, key: sessionStorage.getItem("hotseat-key") || "" };

// ---- what is sent ----

function fieldJson(id, check) {
  const field = element(id);
  field.removeAttribute("aria-invalid");
  if (!field.value.trim()) return undefined;
  try {
    const value = JSON.parse(field.value);
    if (check(value)) return value;
  } catch {
    // said below
  }
  field.setAttribute("aria-invalid", "true");
  element("settings").open = true;
  field.focus();
  throw new Error(id === "schema" ? "The schema must be a JSON object." : "The tools must be a JSON list of objects.");
}

function requestBody() {
  const body = { messages: [...state.messages], ...(state.model ? { model: state.model } : {}) };
  const system = element("system").value.trim();
  if (system) body.messages.unshift({ role: "system", content: system });
  for (const name of NUMBERS) {
    const { value } = element(name);
    if (value !== "") body[name] = Number(value);
  }
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const schema = fieldJson("schema", isObject);
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const tools = fieldJson("tools", (value) => Array.isArray(value) && value.length && value.every(isObject));
  if (tools) body.tools = tools.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
  return body;
}

// ---- what is shown ----

function make(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function addTurn(role, title, text = "") {
  const turn = make("li", "", role);
  const content = make("div", text, "text");
  turn.append(make("h2", title), content);
  element("log").append(turn);
  window.scrollTo(0, document.body.scrollHeight);
  return { turn, content };
}

function fail(error) {
  const shown = element("failure");
  shown.textContent = error.message;
  shown.hidden = false;
  if (error instanceof ApiFailure && error.status === 401) element("key-form").hidden = false;
}

class AnswerView {
  constructor() {
    Object.assign(this, addTurn("assistant", state.model || "Answer"));
    this.thought = null;
    this.calls = [];
  }

  reason(text) {
    if (!this.thought) {
      const fold = make("details");
      this.thought = make("div", "", "text");
      fold.append(make("summary", "Reasoning"), this.thought);
      this.content.before(fold);
    }
    this.thought.textContent += text;
  }

  call({ index, id, function: { name, arguments: part } }) {
    if (!this.calls[index]) {
      const shown = make("pre");
      this.turn.append(shown);
      this.calls[index] = { id, name, arguments: "", shown };
    }
    const call = this.calls[index];
    call.arguments += part ?? "";
    call.shown.textContent = `${call.name}(${call.arguments})`;
  }

  add(delta) {
    const isAtEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - BOTTOM_PX;
    if (delta.reasoning) this.reason(delta.reasoning);
    if (delta.content) this.content.append(delta.content);
    for (const call of delta.tool_calls ?? []) this.call(call);
    if (isAtEnd) window.scrollTo(0, document.body.scrollHeight);
  }

  note(text) {
    if (text) this.turn.append(make("p", text, "note"));
  }

  message() {
    const message = { role: "assistant", content: this.content.textContent };
    if (this.thought) message.reasoning_content = this.thought.textContent;
    if (this.calls.length) {
      const shape = ({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } });
      message.tool_calls = this.calls.map(shape);
      message.content ||= null;
    }
    return message;
  }
}

// A field for the result of each call; sent together, they go on with the conversation.
function askForResults(view) {
  const form = make("form");
  const fields = view.calls.map(({ id, name }, at) => {
    const label = make("label", `Result of ${name}`);
    const field = make("textarea");
    field.id = `result-${state.messages.length}-${at}`;
    label.htmlFor = field.id;
    form.append(label, field);
    return { id, field };
  });
  const send = make("button", "Send results");
  form.append(send);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.stopper) return;
    for (const { id, field } of fields) {
      state.messages.push({ role: "tool", tool_call_id: id, content: field.value });
      field.readOnly = true;
    }
    send.remove();
    answer();
  });
  view.turn.append(form);
  fields[0].field.focus();
}

// ---- one answer ----

class Meter {
  constructor() {
    this.place = "";
    this.count = 0;
    this.firstAt = null;
  }

  tokens(count) {
    this.firstAt ??= performance.now();
    this.count = count;
    this.lastAt = performance.now();
    this.show();
  }

  show() {
    const took = this.firstAt === null ? 0 : (this.lastAt - this.firstAt) / 1000;
    const rate = this.count > 1 && took > 0 ? `${((this.count - 1) / took).toFixed(1)} tokens/s` : "";
    const tokens = this.count ? `${this.count} tokens` : "";
    element("numbers").textContent = [this.place, tokens, rate].filter(Boolean).join(" · ") || "\u00a0";
  }
}

const ENDINGS = { length: "cut at the most tokens", abort: "aborted by the server" };

async function watchPlace(requestId, meter, signal) {
  await new Promise((resolve) => setTimeout(resolve, FIRST_MS)); // before that the server may not know it yet
  while (!signal.aborted) {
    const place = await explain(requestId, state.key).catch(() => "");
    if (place && !signal.aborted) {
      meter.place = place;
      meter.show();
    }
    await new Promise((resolve) => setTimeout(resolve, EXPLAIN_MS));
  }
}

async function answer() {
  element("failure").hidden = true;
  let body;
  try {
    body = requestBody();
  } catch (error) {
    return fail(error);
  }
  const stopper = (state.stopper = new AbortController());
  const watch = new AbortController();
  const requestId = `chat-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
  const meter = new Meter();
  const view = new AnswerView();
  setBusy(true);
  watchPlace(requestId, meter, watch.signal);
  let reason = null;
  try {
    for await (const chunk of streamChat(body, { key: state.key, requestId, signal: stopper.signal })) {
      const [choice] = chunk.choices;
      if (choice) {
        view.add(choice.delta);
        reason = choice.finish_reason ?? reason;
      }
      if (chunk.usage?.completion_tokens) meter.tokens(chunk.usage.completion_tokens);
    }
  } catch (error) {
    reason = stopper.signal.aborted ? "stopped" : "failed";
    if (reason === "failed") fail(error);
  }
  watch.abort();
  finish(view, reason, stopper);
}

function finish(view, reason, stopper) {
  if (state.stopper !== stopper) return; // another chat has begun
  state.stopper = null;
  setBusy(false);
  const isEmpty = !view.content.textContent && !view.thought && !view.calls.length;
  if (reason === "failed" && isEmpty) view.turn.remove();
  else state.messages.push(view.message());
  view.note(reason === "stopped" ? "stopped" : ENDINGS[reason]);
  element("said").textContent = reason === "failed" ? "" : `The answer has ended${reason === "stopped" ? ": stopped" : ""}.`;
  if (view.calls.length && reason !== "stopped" && reason !== "length" && reason !== "failed") askForResults(view);
  else element("message").focus();
}

function setBusy(isBusy) {
  element("log").setAttribute("aria-busy", String(isBusy)); // read aloud when it is complete, not word by word
  element("stop").disabled = !isBusy;
  element("send").disabled = isBusy;
  if (isBusy) element("said").textContent = "The model answers.";
}

// ---- controls ----

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = element("message");
  if (state.stopper || !field.value.trim()) return;
  state.messages.push({ role: "user", content: field.value });
  addTurn("user", "You", field.value);
  field.value = "";
  answer();
});

element("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  element("ask").requestSubmit();
});

element("stop").addEventListener("click", () => state.stopper?.abort());
document.addEventListener("keydown", (event) => event.key === "Escape" && state.stopper?.abort());

element("new").addEventListener("click", () => {
  state.stopper?.abort();
  state.stopper = null;
  state.messages = [];
  element("log").replaceChildren();
  element("failure").hidden = true;
  element("numbers").textContent = "\u00a0";
  setBusy(false);
  element("said").textContent = "A new chat.";
  element("message").focus();
});

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  state.key = element("key").value;
  sessionStorage.setItem("hotseat-key", state.key);
  findModel();
});

async function findModel() {
  const response = await fetch("v1/models", { headers: headers(state.key) });
  element("key-form").hidden = response.status !== 401;
  if (!response.ok) return;
  element("failure").hidden = true;
  state.model = (await response.json()).data[0].id;
  element("model").textContent = state.model;
}

findModel().catch(fail);
element("message").focus();
