// The batch as a picture: one row a seat, one column a step, one colour a request.

import { isAfterGap } from "./records.js";

const AXIS = 18; // height of the time axis
const GUTTER = 38; // width of the seat numbers
const ROW = 15;
const WIDTHS = [2, 3, 4, 6, 8, 12, 16, 24]; // pixels of a column
const TICK_PX = 90; // about the distance of two ticks of the time axis

/** Draws records on a canvas and says what is at a place of it. */
export class Timeline {
  constructor(canvas, records) {
    this.canvas = canvas;
    this.records = records;
    this.zoom = 3;
    this.newest = null; // the step number at the right edge; null: follow
    this.cursor = null; // {step, seat} of the keyboard
    this.selected = null; // a request's id
    this.rows = [];
  }

  get columnWidth() {
    return WIDTHS[this.zoom];
  }

  get numColumns() {
    return Math.max(1, Math.floor((this.canvas.clientWidth - GUTTER - 2) / this.columnWidth));
  }

  /** The index in ``records.steps`` after the last column shown. */
  get endIndex() {
    const { steps } = this.records;
    if (this.newest === null || !steps.length) return steps.length;
    return Math.max(Math.min(this.numColumns, steps.length), this.records.indexOf(this.newest) + 1);
  }

  get startIndex() {
    return Math.max(0, this.endIndex - this.numColumns);
  }

  zoomBy(change) {
    this.zoom = Math.max(0, Math.min(WIDTHS.length - 1, this.zoom + change));
  }

  /** Move the view by columns; reaching the newest step follows again, unless ``stays``. */
  scrollBy(columns, stays = false) {
    const { steps } = this.records;
    if (!steps.length) return;
    const end = Math.max(1, Math.min(steps.length, this.endIndex + columns));
    this.newest = end >= steps.length && !stays ? null : steps[end - 1].step;
  }

  freeze() {
    this.newest ??= this.records.steps.at(-1)?.step ?? null;
  }

  follow() {
    this.newest = null;
  }

  draw() {
    const { canvas } = this;
    this.rows = this.records.usedSeats();
    const height = AXIS + Math.max(1, this.rows.length) * ROW + 4;
    if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    this.colors = Object.fromEntries(
      ["soft", "line", "ink", "bad", "card", "track"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
    this.isDark = style.getPropertyValue("--dark").trim() === "1";
    this.#drawRows(pen);
    this.#drawColumns(pen);
    this.#drawAxis(pen);
    this.#drawCursor(pen);
    this.#publish();
  }

  // What tests and assistive scripts need to find a cell.
  #publish() {
    const { steps } = this.records;
    const data = this.canvas.dataset;
    data.firstStep = steps[this.startIndex]?.step ?? "";
    data.lastStep = steps[this.endIndex - 1]?.step ?? "";
    data.columnWidth = this.columnWidth;
    data.rowHeight = ROW;
    data.left = this.#left;
    data.top = AXIS;
    data.rows = this.rows.join(" ");
  }

  get #left() {
    return this.canvas.clientWidth - (this.endIndex - this.startIndex) * this.columnWidth - 2;
  }

  #drawRows(pen) {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    this.rows.forEach((seat, row) => {
      const y = AXIS + row * ROW;
      pen.fillStyle = this.colors.track;
      pen.fillRect(GUTTER, y + ROW - 1, this.canvas.clientWidth - GUTTER, 0.5);
      pen.fillStyle = this.colors.soft;
      pen.fillText(String(seat), GUTTER - 8, y + ROW / 2);
    });
  }

  #drawColumns(pen) {
    const { steps } = this.records;
    const width = this.columnWidth;
    const rowOf = new Map(this.rows.map((seat, row) => [seat, row]));
    const left = this.#left;
    for (let index = this.startIndex; index < this.endIndex; index += 1) {
      const step = steps[index];
      const x = left + (index - this.startIndex) * width;
      if (isAfterGap(step)) this.#drawGap(pen, x);
      for (const chunk of step.scheduled) {
        this.#drawCell(pen, x, AXIS + rowOf.get(chunk.seat) * ROW, width, chunk, step.marks.get(chunk.id));
      }
      for (const { id } of step.preempted) this.#drawPreemption(pen, x, id, index);
    }
  }

  #drawCell(pen, x, y, width, chunk, mark) {
    const request = this.records.requests.get(chunk.id);
    const gap = width > 3 ? 1 : 0;
    pen.fillStyle = this.colorOf(chunk.phase, request?.hue ?? 0);
    pen.fillRect(x, y + 1, width - gap, ROW - 3);
    if (chunk.accepted) {
      // Accepted drafts: from the bottom up the strong shade, the whole cell when all were true.
      const height = ((ROW - 3) * chunk.accepted) / chunk.drafts;
      pen.fillStyle = this.colorOf("prefill", request?.hue ?? 0);
      pen.fillRect(x, y + ROW - 2 - height, (width - gap) / 2, height);
    }
    if (chunk.id === this.selected) {
      pen.fillStyle = this.colors.ink;
      pen.fillRect(x, y + ROW - 3, width, 2);
    }
    if (mark === "admitted") {
      pen.fillStyle = this.colors.ink;
      pen.beginPath();
      pen.moveTo(x, y + 1);
      pen.lineTo(x + Math.min(5, width), y + 1);
      pen.lineTo(x, y + 7);
      pen.fill();
    } else if (mark === "ended") {
      pen.fillStyle = this.colors.ink;
      pen.fillRect(x + Math.max(0, width - gap - 2), y + 1, Math.min(2, width), ROW - 3);
    }
  }

  /** The colour of a cell: the request's hue; prefill is the strong shade, decode the light one. */
  colorOf(phase, hue) {
    const [saturation, lightness] = phase === "prefill" ? [75, this.isDark ? 62 : 42] : [55, this.isDark ? 42 : 68];
    return `hsl(${hue} ${saturation}% ${lightness}%)`;
  }

  #drawGap(pen, x) {
    pen.strokeStyle = this.colors.soft;
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(x - 0.5, AXIS);
    pen.lineTo(x - 0.5, AXIS + this.rows.length * ROW);
    pen.stroke();
    pen.setLineDash([]);
  }

  // A cross in the seat that the request lost: the one of its last chunk before this step.
  #drawPreemption(pen, x, id, index) {
    const seat = this.#seatBefore(id, index);
    const row = this.rows.indexOf(seat);
    if (row < 0) return;
    const y = AXIS + row * ROW;
    pen.strokeStyle = this.colors.bad;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x - 3, y + 3);
    pen.lineTo(x + 3, y + ROW - 4);
    pen.moveTo(x + 3, y + 3);
    pen.lineTo(x - 3, y + ROW - 4);
    pen.stroke();
    pen.lineWidth = 1;
  }

  #seatBefore(id, index) {
    const { steps } = this.records;
    for (let place = index - 1; place >= Math.max(0, index - 64); place -= 1) {
      const chunk = steps[place].scheduled.find((one) => one.id === id);
      if (chunk) return chunk.seat;
    }
    return -1;
  }

  #drawAxis(pen) {
    const { steps } = this.records;
    if (!steps.length) return;
    const newest = steps.at(-1).end_s;
    const every = Math.max(1, Math.round(TICK_PX / this.columnWidth));
    pen.textAlign = "left";
    pen.fillStyle = this.colors.soft;
    for (let index = this.endIndex - 1; index >= this.startIndex; index -= every) {
      const x = this.#left + (index - this.startIndex) * this.columnWidth;
      const text = timeBefore(newest - steps[index].end_s);
      const room = this.canvas.clientWidth - x;
      const width = pen.measureText(text).width + 6;
      if (x < GUTTER) break;
      pen.fillRect(x, AXIS - 4, 1, 4);
      pen.fillText(text, room < width ? x - width + 4 : x + 3, AXIS / 2);
    }
    pen.textAlign = "right";
    pen.fillText("seat", GUTTER - 8, AXIS / 2);
  }

  #drawCursor(pen) {
    if (!this.cursor) return;
    const index = this.records.indexOf(this.cursor.step);
    const row = this.rows.indexOf(this.cursor.seat);
    if (row < 0 || index < this.startIndex || index >= this.endIndex) return;
    pen.strokeStyle = this.colors.ink;
    pen.lineWidth = 2;
    const x = this.#left + (index - this.startIndex) * this.columnWidth;
    pen.strokeRect(x - 1, AXIS + row * ROW, this.columnWidth + 1, ROW - 1);
    pen.lineWidth = 1;
  }

  /** Return {step, seat, chunk} at a place of the canvas in CSS pixels; null outside the rows. */
  cellAt(x, y) {
    const index = this.startIndex + Math.floor((x - this.#left) / this.columnWidth);
    const row = Math.floor((y - AXIS) / ROW);
    const step = this.records.steps[index];
    if (index < this.startIndex || index >= this.endIndex || row < 0 || row >= this.rows.length || !step) return null;
    const seat = this.rows[row];
    return { step, seat, chunk: step.bySeat.get(seat) ?? null };
  }

  /** Move the keyboard's cursor and bring it into view; return its cell. */
  moveCursor(columns, rows) {
    const { steps } = this.records;
    if (!steps.length || !this.rows.length) return null;
    this.freeze();
    const at = this.cursor ?? { step: steps[this.endIndex - 1].step, seat: this.rows[0] };
    const start = this.cursor ? 0 : -columns;
    const index = Math.max(0, Math.min(steps.length - 1, this.records.indexOf(at.step) + columns + start));
    const row = Math.max(0, Math.min(this.rows.length - 1, Math.max(0, this.rows.indexOf(at.seat)) + rows));
    this.cursor = { step: steps[index].step, seat: this.rows[row] };
    if (index < this.startIndex) this.scrollBy(index - this.startIndex, true);
    if (index >= this.endIndex) this.scrollBy(index - this.endIndex + 1, true);
    return { step: steps[index], seat: this.rows[row], chunk: steps[index].bySeat.get(this.rows[row]) ?? null };
  }
}

function timeBefore(seconds) {
  if (seconds < 0.0005) return "newest";
  if (seconds < 1) return `−${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `−${seconds.toFixed(1)} s`;
  return `−${Math.round(seconds / 60)} min`;
}
