// The chart of the page Now: parts of the pinned total as stacked steps, and what is not part of it as dashed lines.
const HEIGHT = 320, TOP = 8, BOTTOM = 24, LEFT = 64, RIGHT = 12;
const LEAST_SECONDS = 60; // the axis is at least so long, and grows to the window as samples come in
const LEAST_BYTES = 2 ** 20;
const LEAST_ZOOM_MS = 2000;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800].map((seconds) => seconds * 1000);

const clock = new Intl.DateTimeFormat("sv", { timeStyle: "medium" }).format; // as 09:50:11, the reader's own
// As pinscope/units.py writes the cards beside the chart: three digits, all before the point, a half to the even one.
const digits = new Intl.NumberFormat("en", {
  minimumSignificantDigits: 3, maximumSignificantDigits: 3, maximumFractionDigits: 0,
  roundingPriority: "morePrecision", roundingMode: "halfEven", useGrouping: false,
}).format;

export function bytesText(value) {
  if (value == null) return "n/a";
  let unit = 0;
  for (; Math.round(Math.abs(value)) >= 1024 && unit < UNITS.length - 1; unit += 1) value /= 1024;
  return `${Number.isInteger(value) ? value : digits(value)} ${UNITS[unit]}`;
}

function svg(tag, attributes = {}, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function html(tag, name, text = "") {
  const element = document.createElement(tag);
  element.className = name;
  element.textContent = text;
  return element;
}

export class Chart {
  constructor(place, redraw) {
    this.place = place;
    this.redraw = redraw;
    this.picked = null; // a series, or all
    this.zoom = null; // begin and end in milliseconds; without it the chart follows the time
    this.legend = html("div", "legend");
    this.tip = html("div", "chart-tip");
    this.tip.hidden = true;
    this.svg = svg("svg", { height: HEIGHT, width: "100%", role: "img" });
    this.grid = this.svg.appendChild(svg("g", { class: "axis" }));
    this.marks = this.svg.appendChild(svg("g"));
    this.line = this.svg.appendChild(svg("path", { class: "pointed" }));
    place.append(this.legend, this.svg, this.tip);
    this.listen();
    new ResizeObserver(() => redraw()).observe(place);
  }

  listen() {
    this.svg.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey)) return; // the wheel alone goes on scrolling the page
      event.preventDefault();
      const at = this.time(event), factor = Math.exp(event.deltaY * 0.002);
      this.look(at - (at - this.begin) * factor, at + (this.end - at) * factor);
    }, { passive: false });
    this.svg.addEventListener("pointerdown", (event) => {
      this.dragged = { x: event.clientX, begin: this.begin, end: this.end };
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (this.dragged && Math.abs(event.clientX - this.dragged.x) > 2) {
        const moved = ((this.dragged.x - event.clientX) / this.inner()) * (this.dragged.end - this.dragged.begin);
        this.look(this.dragged.begin + moved, this.dragged.end + moved);
      } else this.point(event);
    });
    for (const name of ["pointerup", "pointercancel"]) this.svg.addEventListener(name, () => (this.dragged = null));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("dblclick", () => {
      this.zoom = null;
      this.redraw();
    });
  }

  inner() {
    return Math.max(this.place.clientWidth - LEFT - RIGHT, 50);
  }

  time(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    return this.begin + ((x - LEFT) / this.inner()) * (this.end - this.begin);
  }

  x(at) {
    return LEFT + ((at - this.begin) / (this.end - this.begin)) * this.inner();
  }

  y(bytes) {
    return HEIGHT - BOTTOM - (bytes / this.top) * (HEIGHT - TOP - BOTTOM);
  }

  look(begin, end) {
    if (end - begin < LEAST_ZOOM_MS) return;
    this.zoom = [begin, end];
    this.redraw();
  }

  // Pieces of the series: stretches without a gap, at most one moment a pixel, the highest of those.
  pieces() {
    const wide = Math.max((this.end - this.begin) / this.inner(), this.interval);
    const gap = Math.max(2.5 * wide, wide + 1000, 2.5 * this.bucket);
    const found = [];
    for (const [at, ...values] of this.moments) {
      if (at < this.begin - gap || at > this.end) continue;
      if (!found.length || at + wide - found.at(-1).end > gap) found.push({ points: [] });
      const piece = found.at(-1), before = piece.points.at(-1);
      if (!before || wide === this.interval || Math.floor(at / wide) !== Math.floor(before.at / wide)) {
        piece.points.push({ at, values });
      } else if (sum(values) > sum(before.values)) before.values = values;
      piece.end = at + wide;
    }
    return found;
  }

  draw(found, moments, windowSeconds) {
    if (!moments.length || !this.place.clientWidth) return;
    this.series = found.series;
    this.moments = moments;
    this.interval = found.interval * 1000;
    this.bucket = Math.max((windowSeconds * 1000) / 600, this.interval);
    const last = moments.at(-1)[0];
    const span = Math.min(windowSeconds, Math.max(LEAST_SECONDS, (last - moments[0][0]) / 1000)) * 1000;
    [this.begin, this.end] = this.zoom ?? [last - span, last + this.interval];
    const pieces = this.pieces();
    const all = pieces.flatMap((piece) => piece.points);
    const heights = ({ values }) => [this.stacked(values), ...values.filter((_, number) => !this.series[number].band)];
    const highest = Math.max(LEAST_BYTES, ...all.flatMap(heights));
    this.top = highest * 1.02;
    this.drawLegend();
    this.drawAxes();
    this.marks.replaceChildren(...this.series.flatMap((series, number) => this.drawSeries(series, number, pieces)));
    const now = this.series.map(({ name }, number) => `${name}: ${bytesText(moments.at(-1)[number + 1])}`);
    this.svg.setAttribute("aria-label", `Pinned and locked memory of this host over the chosen window. Now ${now.join(", ")}.`);
    if (this.pointer) this.point(this.pointer);
  }

  // The sum of the bands, or of those below a series.
  stacked(values, number = this.series.length) {
    return sum(values.filter((_, place) => place < number && this.series[place].band));
  }

  drawSeries({ name, colour, band }, number, pieces) {
    const opacity = this.picked === null || this.picked === name ? 1 : 0.15;
    const path = { fill: "none", stroke: colour, "stroke-width": band ? 1 : 2, opacity };
    if (!band) path["stroke-dasharray"] = "6 3";
    const shapes = [];
    for (const piece of pieces) {
      const below = ({ values }) => (band ? this.stacked(values, number) : 0);
      const points = piece.points.map((point, place) => ({
        begin: Math.max(this.x(point.at), LEFT), end: Math.max(this.x(piece.points[place + 1]?.at ?? piece.end), LEFT),
        low: below(point), high: point.values[number] == null ? null : below(point) + point.values[number],
      }));
      const known = points.filter(({ high }) => high !== null);
      if (!known.length) continue;
      const limit = (x) => Math.min(x, LEFT + this.inner()).toFixed(1);
      const upper = known.map(({ begin, end, high }, place) =>
        `${place && known[place - 1].end === begin ? "L" : place ? (band ? "L" : "M") : "M"}${limit(begin)},${this.y(high).toFixed(1)}H${limit(end)}`).join("");
      if (band) {
        const lower = known.toReversed().map(({ begin, end, low }) => `L${limit(end)},${this.y(low).toFixed(1)}H${limit(begin)}`).join("");
        shapes.push(svg("path", { d: `${upper}${lower}Z`, fill: colour, "fill-opacity": 0.75, opacity }));
      }
      shapes.push(svg("path", { ...path, d: upper }));
    }
    return shapes;
  }

  drawAxes() {
    const marks = [];
    const step = 2 ** Math.round(Math.log2(this.top / 5));
    for (let value = 0; value <= this.top; value += step) {
      const y = this.y(value);
      marks.push(svg("line", { x1: LEFT, x2: LEFT + this.inner(), y1: y, y2: y }));
      marks.push(svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, bytesText(value)));
    }
    const most = Math.max(2, Math.floor(this.inner() / 110));
    const wide = STEPS.find((one) => (this.end - this.begin) / one <= most) ?? 3600_000;
    const shift = new Date(this.end).getTimezoneOffset() * 60_000; // whole minutes of the reader's own clock
    for (let at = Math.ceil((this.begin - shift) / wide) * wide + shift; at <= this.end; at += wide) {
      const x = this.x(at);
      if (x < LEFT + 20 || x > LEFT + this.inner() - 20) continue;
      const label = svg("text", { x, y: HEIGHT - 6, "text-anchor": "middle", class: "time" }, clock(new Date(at)));
      label.append(svg("title", {}, `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC`));
      marks.push(label);
    }
    this.grid.replaceChildren(...marks);
  }

  drawLegend() {
    if (this.legend.childElementCount) return;
    for (const { name, colour } of this.series) {
      const button = html("button", "", name);
      button.type = "button";
      button.setAttribute("aria-pressed", "false");
      const mark = html("span", "mark");
      mark.style.background = colour;
      button.prepend(mark);
      button.addEventListener("click", () => {
        this.picked = this.picked === name ? null : name;
        for (const one of this.legend.children) one.setAttribute("aria-pressed", String(this.picked !== null && one === button));
        this.redraw();
      });
      this.legend.append(button);
    }
  }

  // A line at the moment nearest to the pointer, with every figure of it.
  point(event) {
    this.pointer = event;
    const at = event && this.moments && this.time(event);
    const near = at && this.moments.reduce((best, one) => (Math.abs(one[0] - at) < Math.abs(best[0] - at) ? one : best));
    const shown = Boolean(near) && near[0] >= this.begin && near[0] <= this.end;
    this.tip.hidden = !shown;
    this.line.setAttribute("d", shown ? `M${this.x(near[0])},${TOP}V${HEIGHT - BOTTOM}` : "");
    if (!shown) return;
    const moment = new Date(near[0]);
    const rows = this.series.map(({ name }, number) => html("div", "", `${name}: ${bytesText(near[number + 1])}`));
    this.tip.replaceChildren(html("b", "", `${clock(moment)} (${moment.toISOString().slice(11, 19)} UTC)`), ...rows);
    const x = this.x(near[0]), right = x > this.place.clientWidth / 2;
    this.tip.style.left = right ? "" : `${x + 10}px`;
    this.tip.style.right = right ? `${this.place.clientWidth - x + 10}px` : "";
  }
}

function sum(values) {
  return values.reduce((total, one) => total + (one ?? 0), 0);
}
