// The page Now: asks the server for what changed, and draws it. Text from outside is only ever set as text.
"use strict";
(() => {
  const mount = document.currentScript?.parentElement?.querySelector(".pinscope-now");
  if (!mount) return;
  const options = mount.dataset;
  const MOST_ROWS = 200;
  const LOST_MS = 2000, HIDDEN_MS = 30000;

  // What a reader set lasts as long as the tab, also while it shows another page.
  const set = (window.pinscopeNow ??= {
    window: options.window, filter: "", growing: false, all: false, rows: MOST_ROWS, chosen: "", sort: null,
  });
  const now = { document: null, moments: [], facts: {}, tag: "", paused: false, lost: false, timer: 0, chart: null };

  // ---- Making and keeping elements

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value != null) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  function say(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function attribute(element, name, value) {
    if (value == null || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }

  function show(element, shown) {
    if (element.hidden === shown) element.hidden = !shown;
  }

  // One child an item, known by its key: what stays is kept, and only moved where its place changed.
  function sync(parent, items, begin, draw) {
    const kept = (parent.pinscopeKept ??= new Map());
    const keys = new Set(items.map(([key]) => key));
    for (const [key, element] of kept) {
      if (!keys.has(key)) {
        element.remove();
        kept.delete(key);
      }
    }
    let place = parent.firstElementChild;
    for (const [key, item] of items) {
      let element = kept.get(key);
      if (!element) kept.set(key, (element = begin(item, key)));
      if (element === place) place = place.nextElementSibling;
      else parent.insertBefore(element, place);
      draw(element, item, key);
    }
  }

  const entries = (numbered) => Object.entries(numbered ?? {}).sort(([one], [other]) => one - other);

  // ---- Times: the reader's own, UTC on hover

  const clock = new Intl.DateTimeFormat("sv", { timeStyle: "medium" }); // as 09:50:11
  const dayAndClock = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "medium" }); // as 2026-11-21 09:50:11

  function tell(element, ms, format = dayAndClock) {
    const moment = new Date(ms);
    say(element, format.format(moment));
    attribute(element, "datetime", moment.toISOString());
    attribute(element, "title", `${moment.toISOString().slice(0, 19).replace("T", " ")} UTC`);
  }

  // ---- Parts that occur more than once

  function hint(text) {
    return make("span", { class: "tip", tabindex: "0", role: "note", "data-tip": text, "aria-label": text }, "?");
  }

  function drawCards(grid, figures) {
    sync(
      grid,
      Object.entries(figures ?? {}),
      (figure) => {
        const [value, below] = [make("div", { class: "value" }), make("div", { class: "below" })];
        const tip = hint(figure.help);
        const card = make("div", { class: "card figure" }, make("div", { class: "label" }, figure.label, tip), value, below);
        return Object.assign(card, { parts: { value, below, tip } });
      },
      ({ parts }, figure) => {
        say(parts.value, figure.text);
        say(parts.below, figure.below);
        attribute(parts.tip, "data-tip", figure.help);
        attribute(parts.tip, "aria-label", figure.help);
      },
    );
  }

  function drawFacts(body, facts) {
    sync(
      body,
      facts,
      () => make("tr", {}, make("th", { scope: "row" }), make("td")),
      (row, [name, text]) => {
        say(row.children[0], name);
        const cell = row.children[1], [ms, rest] = ownTime(text);
        if (ms === null) return say(cell, text);
        if (!cell.firstElementChild) cell.replaceChildren(make("time"), make("span"));
        tell(cell.firstElementChild, ms);
        say(cell.lastElementChild, rest);
      },
    );
  }

  // A fact that begins with a time in UTC: that time, and what stands after it.
  function ownTime(text) {
    const found = /^(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC(.*)$/s.exec(text);
    return found ? [Date.parse(`${found[1]}T${found[2]}Z`), found[3]] : [null, text];
  }

  const factTable = () => {
    const body = make("tbody");
    return [make("table", { class: "facts" }, body), body];
  };

  // A help text stands beside its sign while that is pointed at or has the focus.
  function watchHints(element) {
    const tip = make("div", { class: "pinscope-tip", hidden: true });
    const away = () => { tip.remove(); };
    const near = (event) => {
      const sign = event.target.closest?.("[data-tip]");
      if (!sign) return away();
      say(tip, sign.dataset.tip);
      tip.hidden = false;
      document.body.append(tip);
      const box = sign.getBoundingClientRect();
      tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${box.bottom + tip.offsetHeight + 12 > innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
    };
    for (const name of ["mouseover", "focusin"]) element.addEventListener(name, near);
    for (const name of ["mouseleave", "focusout"]) element.addEventListener(name, away);
  }

  // ---- The page, made once

  const root = make("div", { class: "pinscope-page" });
  const part = {};
  const section = (title, ...children) => make("section", {}, make("h2", {}, title), ...children);

  function toggle(label, checked, change, help) {
    const box = make("input", { type: "checkbox", role: "switch", checked, onchange: () => change(box.checked) });
    return make("div", { class: "switch" }, make("label", {}, box, label), ...(help ? [hint(help)] : []));
  }

  function controls() {
    const choices = JSON.parse(options.windows).map(([value, words]) =>
      make("option", { value, selected: value === set.window }, words));
    const span = make("select", { id: "pinscope-window", onchange: () => { set.window = span.value; ask(true); } }, ...choices);
    const reach = hint("How far back the chart, the events and the marks of growing processes reach. Stands still with the page.");
    const back = make("div", {}, make("label", { for: span.id }, "Time window"), reach);
    const pause = toggle("Pause", false, setPaused, "Freezes this tab. Filter, details and download still work.");
    const save = make(
      "a", { class: "button", role: "button", "aria-disabled": "true", download: "pinscope-snapshot.json",
        title: "The snapshot on this page as JSON, as 'pinscope live --once --json' prints it." }, "Snapshot (JSON)",
    );
    Object.assign(part, { span, save });
    return make("div", { class: "controls" }, make("div", { class: "control" }, back, span), pause, save);
  }

  function holders() {
    const filter = make("input", {
      id: "pinscope-filter", type: "search", placeholder: "Name, pid, user, container or command", value: set.filter,
      oninput: () => { set.filter = filter.value; drawHolders(); },
    });
    const growing = toggle("Only growing", set.growing, (on) => { set.growing = on; drawHolders(); }, options.growth);
    const all = toggle("All columns", set.all, (on) => { set.all = on; drawHolders(); });
    const [factsOfChosen, factBody] = factTable();
    Object.assign(part, {
      count: make("p", { class: "caption" }),
      pinned: table("Processes that hold pinned memory"),
      locked: table("Processes that only lock memory"),
      lockedCount: make("p", { class: "caption" }),
      nobody: make("p", { class: "notice" }),
      more: make("button", { type: "button", class: "button", onclick: () => { set.rows = Infinity; drawHolders(); } }),
      factTitle: make("h3"), factBody,
      hint: make("p", { class: "caption" }, "Select a row to see all that is known of a process."),
    });
    part.lockedPart = section("Locked, but not pinned", part.lockedCount, part.locked.scroll);
    part.chosen = make("div", { class: "card", hidden: true }, part.factTitle, factsOfChosen);
    return section("Holders",
      make("div", { class: "controls" }, make("div", { class: "control wide" }, make("label", { for: "pinscope-filter" }, "Filter"), filter), growing, all),
      part.count, part.nobody, part.pinned.scroll, part.lockedPart, part.more, part.hint, part.chosen);
  }

  function table(alt) {
    const [head, body] = [make("tr"), make("tbody")];
    const element = make("table", { class: "rows", "aria-label": alt }, make("thead", {}, head), body);
    return { head, body, scroll: make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": alt }, element) };
  }

  function build() {
    const [hostTable, host] = factTable();
    Object.assign(part, {
      host,
      trouble: make("p", { class: "notice warning", role: "status", hidden: true }),
      asOf: make("p", { class: "caption as-of" }, "The first snapshot is being taken."),
      verdict: make("h2", { class: "verdict" }),
      figures: make("div", { class: "grid figures" }),
      chart: make("div", { class: "chart" }),
      body: make("div", { hidden: true }),
      devices: make("div", { class: "grid wide" }), noGpu: make("p", { class: "notice" }),
      findingList: make("div", { class: "grid wide" }), gapList: make("div", { class: "grid wide" }),
      nothing: make("p", { class: "caption" },
        "Nothing happened in this window. Processes that appear, grow, give memory back or end are listed here."),
      events: make("tbody"),
    });
    part.time = make("time");
    part.findings = section("Findings", part.findingList);
    part.gaps = section("What cannot be read here", part.gapList);
    const heads = ["Time", "Event", "Process", "PID", "Memory", "Change", "Holds now"];
    part.eventTable = make("div", { class: "scroll events", tabindex: "0", role: "region", "aria-label": "What happened to the holders" },
      make("table", { class: "rows" }, make("thead", {}, make("tr", {}, ...heads.map((one) => make("th", { scope: "col" }, one)))), part.events));
    part.body.append(
      part.verdict, part.figures,
      make("details", { class: "card" }, make("summary", {}, "More of the host's memory"), hostTable),
      make("figure", { class: "card" }, make("figcaption", {}, "Pinned and locked memory"), part.chart,
        make("p", { class: "caption" },
          "Times are your own; hold the pointer over one for UTC. Ctrl and the wheel (or a pinch) zoom, dragging moves, a double " +
          "click goes back to now; a click on a name in the legend picks it out. A gap: nothing was sampled then.")),
      holders(), section("GPUs", part.noGpu, part.devices), part.findings, part.gaps,
      section("Events", part.nothing, part.eventTable),
    );
    watchHints(root);
    root.append(controls(), part.trouble, part.asOf, part.body);
  }

  // ---- Asking

  async function setPaused(paused) {
    now.paused = paused;
    part.span.disabled = paused;
    if (!paused) {
      URL.revokeObjectURL(part.save.href);
      return ask(true);
    }
    clearTimeout(now.timer);
    draw();
    // All that a standing page may be asked for is fetched now: later the server has forgotten this moment.
    const at = now.tag;
    const [file, details] = await Promise.all([
      fetch(`/live/snapshot.json?at=${at}`), fetch(`/live/facts.json?at=${at}`),
    ]).catch(() => []);
    if (!now.paused || now.tag !== at || !file?.ok || !details?.ok) return;
    now.facts = await details.json();
    part.save.href = URL.createObjectURL(await file.blob());
    drawChosen();
  }

  function ask(whole) {
    clearTimeout(now.timer);
    if (whole) now.tag = "";
    if (!now.paused) poll();
  }

  async function poll() {
    const asked = (now.asked = {}); // a later question makes the answer to this one void
    const known = now.tag;
    let wait = LOST_MS;
    try {
      const chosen = encodeURIComponent(set.chosen);
      const answer = await fetch(`/live/now.json?window=${set.window}&known=${known}&chosen=${chosen}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const answered = await answer.json();
      if (asked !== now.asked || now.paused) return;
      wait = answered.wait * 1000;
      now.lost = false;
      take(answered);
    } catch (error) {
      if (!(error instanceof TypeError) && !/^\d+$/.test(error.message)) console.error(error);
      if (asked !== now.asked || now.paused) return;
      now.lost = true;
      now.tag = "";
    }
    draw();
    if (!root.isConnected) return; // the page was left
    now.timer = setTimeout(poll, document.hidden ? Math.max(wait, HIDDEN_MS) : wait);
  }

  function take(answered) {
    const { moments = [], ...news } = answered.document;
    if (answered.base) {
      merge(now.document, news);
      now.moments.push(...moments);
    } else {
      now.document = news;
      now.moments = moments;
    }
    const begin = (now.document.taken ?? 0) - 1000 * Math.max(set.window, 60);
    now.moments = now.moments.slice(Math.max(now.moments.findIndex(([at]) => at >= begin) - 1, 0));
    if (answered.facts) now.facts = answered.facts;
    now.tag = answered.tag;
  }

  function merge(target, news) {
    for (const [name, value] of Object.entries(news)) {
      if (value === null) delete target[name];
      else if (typeof value === "object" && !Array.isArray(value) && typeof target[name] === "object") merge(target[name], value);
      else target[name] = value;
    }
  }

  // ---- Drawing

  function draw() {
    const found = now.document;
    const trouble = now.lost ? "The dashboard's server does not answer. Below is what it said last." : found?.trouble;
    show(part.trouble, Boolean(trouble));
    say(part.trouble, trouble ?? "");
    if (!found) return;
    if (found.taken === undefined) return say(part.asOf, trouble ? "" : "The first snapshot is being taken.");
    if (!part.time.isConnected) part.asOf.replaceChildren(make("span"), part.time, make("span"));
    say(part.asOf.firstChild, `${now.paused ? "Paused. " : ""}As of `);
    tell(part.time, found.taken);
    say(part.asOf.lastChild, ` · took ${found.took} of CPU time`);
    attribute(part.save, "aria-disabled", null);
    if (!now.paused) attribute(part.save, "href", `/live/snapshot.json?at=${now.tag}`);
    show(part.body, true);
    say(part.verdict, found.verdict);
    drawCards(part.figures, found.figures);
    drawFacts(part.host, entries(found.host));
    now.chart?.draw(found, now.moments, Number(set.window));
    drawHolders();
    drawRest(found);
  }

  function drawRest(found) {
    show(part.noGpu, Boolean(found.no_gpu));
    say(part.noGpu, found.no_gpu);
    sync(part.devices, entries(found.devices), beginDevice, (card, device) => {
      say(card.parts.title, device.title);
      drawCards(card.parts.grid, device.figures);
      drawFacts(card.parts.body, entries(device.facts));
    });
    show(part.findings, entries(found.findings).length > 0);
    sync(part.findingList, entries(found.findings), () => make("div", { class: "card" }), drawFinding);
    show(part.gaps, entries(found.gaps).length > 0);
    sync(part.gapList, entries(found.gaps), () => make("div", { class: "card" }), (card, gap) =>
      fill(card, gap, () => [
        make("h3", {}, gap.what, ...(gap.hides ? [make("span", { class: "badge warning" }, "may hide holders")] : [])),
        ...(gap.reason ? [make("p", {}, gap.reason)] : []),
        ...(gap.advice ? [make("p", { class: "caption" }, `→ ${gap.advice}`)] : []),
      ]));
    const events = Object.entries(found.events ?? {}).sort(([, one], [, other]) => other.at - one.at);
    show(part.nothing, events.length === 0);
    show(part.eventTable, events.length > 0);
    sync(part.events, events, (event) => {
      const time = make("time");
      tell(time, event.at, clock);
      const cells = [time, event.event, event.name, String(event.pid), event.memory, event.change, event.total];
      return make("tr", {}, ...cells.map((one) => make("td", {}, one)));
    }, () => {});
  }

  function beginDevice() {
    const [table, body] = factTable();
    const parts = { title: make("h3"), grid: make("div", { class: "grid figures" }), body };
    return Object.assign(make("div", { class: "card" }, parts.title, parts.grid, table), { parts });
  }

  // Drawn anew only if it says something else.
  function fill(element, item, content) {
    const text = JSON.stringify(item);
    if (element.pinscopeShown === text) return;
    element.pinscopeShown = text;
    element.replaceChildren(...content());
  }

  function drawFinding(card, finding) {
    fill(card, finding, () => [
      make("h3", {}, make("span", { class: `badge ${finding.severity}` }, finding.word), finding.title),
      ...(finding.detail ? [make("p", {}, finding.detail)] : []),
      ...(finding.evidence ? [make("p", { class: "caption" }, finding.evidence)] : []),
      ...(finding.advice ? [make("p", {}, `→ ${finding.advice}`)] : []),
      ...(finding.code ? [make("details", {}, make("summary", {}, "Code to paste"), make("pre", {}, finding.code))] : []),
    ]);
  }

  // ---- Holders

  const COLUMNS = {
    name: { label: "Process", value: (one) => one.name },
    grows: { label: "Grows", help: "It grew steadily through the window.", value: (one) => (one.grows ? 1 : 0), text: (one) => (one.grows ? "▲" : "") },
    pid: { label: "PID", value: (one) => one.pid, number: true },
    gpus: { label: "GPUs", value: (one) => one.gpus },
    trend: { label: "Trend", help: "cudaHostAlloc, driver, registered and locked memory over the window, for the largest holders." },
    user: { label: "User", value: (one) => one.user },
    container: { label: "Container", value: (one) => one.container },
    started: { label: "Started", value: (one) => one.started },
    command: { label: "Command", value: (one) => one.command },
  };

  function figureColumn(name, figure) {
    return {
      label: figure.label, help: `${figure.help} ≤ at most, ≥ at least, ~ about.`, number: true,
      value: (one) => one.cells[name]?.[0], text: (one) => one.cells[name]?.[1] ?? "n/a",
    };
  }

  function columns(onlyLocked) {
    const figures = Object.entries(now.document.columns)
      .filter(([name, figure]) => (onlyLocked ? name === "locked_bytes" : set.all || !figure.hidden))
      .map(([name, figure]) => [name, figureColumn(name, figure)]);
    const own = Object.entries(COLUMNS).filter(([name]) => !onlyLocked || name !== "gpus");
    return [...own.slice(0, 3), ...figures, ...own.slice(3)];
  }

  function fits(one) {
    const text = [one.pid, one.name, one.user, one.container, one.group, one.command].join("\n").toLowerCase();
    return (one.grows || !set.growing) && set.filter.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function sorted(rows, shown) {
    const column = set.sort && Object.fromEntries(shown)[set.sort.name];
    if (!column) return rows.sort(([, one], [, other]) => one.rank - other.rank);
    const sign = set.sort.down ? -1 : 1;
    return rows.sort(([, one], [, other]) => {
      const [left, right] = [column.value(one), column.value(other)];
      if (left == null || right == null) return (left == null) - (right == null);
      const order = typeof left === "string" ? left.localeCompare(right) : left - right;
      return sign * order || one.rank - other.rank;
    });
  }

  function drawHolders() {
    const every = Object.entries(now.document?.holders ?? {});
    const shown = every.filter(([, one]) => fits(one));
    const growing = every.filter(([, one]) => one.grows).length;
    const pinning = every.filter(([, one]) => !one.only_locked).length;
    const [pinned, locked] = [shown.filter(([, one]) => !one.only_locked), shown.filter(([, one]) => one.only_locked)];
    const others = every.length - pinning;
    say(part.count, `${pinned.length} of ${pinning} holders` + (growing ? ` · ${growing} growing` : ""));
    say(part.lockedCount, `${locked.length} of ${others} processes that only lock memory (VmLck). It stays in RAM, but is not pinned for CUDA.`);
    show(part.count, pinning > 0);
    show(part.hint, !set.chosen && every.length > 0);
    show(part.nobody, pinned.length === 0);
    say(part.nobody, pinning ? "No holder fits this filter." :
      "No process holds pinned memory now. Processes with pinned memory, or with a CUDA context, appear here as soon as there are any.");
    show(part.pinned.scroll, pinned.length > 0);
    show(part.lockedPart, every.length > pinning);
    drawTable(part.pinned, pinned, columns(false));
    drawTable(part.locked, locked, columns(true));
    const most = Math.max(pinned.length, locked.length);
    show(part.more, most > set.rows);
    say(part.more, `Show all ${most} rows`);
    drawChosen();
  }

  function drawTable({ head, body }, rows, shown) {
    sync(head, shown, beginHead, (cell, column, name) => {
      attribute(cell, "aria-sort", set.sort?.name === name ? (set.sort.down ? "descending" : "ascending") : null);
    });
    sync(body, sorted(rows, shown).slice(0, set.rows), beginRow, (row, one, key) => {
      attribute(row, "aria-selected", set.chosen === key ? "true" : null);
      sync(row, shown, (column, name) => beginCell(column, name, key), (cell, column, name) => drawCell(cell, column, name, one));
    });
  }

  function beginHead(column, name) {
    const button = make("button", { type: "button", onclick: () => sortBy(name, column.number), disabled: !column.value }, column.label);
    return make("th", { scope: "col", class: column.number ? "number" : "" }, button, ...(column.help ? [hint(column.help)] : []));
  }

  function sortBy(name, downFirst) {
    const before = set.sort?.name === name ? set.sort : null;
    if (!before) set.sort = { name, down: Boolean(downFirst), turned: false };
    else set.sort = before.turned ? null : { name, down: !before.down, turned: true };
    drawHolders();
  }

  function beginRow(one, key) {
    return make("tr", { "data-key": key, onclick: () => choose(key) });
  }

  function beginCell(column, name, key) {
    if (name === "name") {
      const button = make("button", { type: "button", onclick: (event) => { event.stopPropagation(); choose(key); } });
      return Object.assign(make("th", { scope: "row" }, button), { text: button });
    }
    const cell = make("td", { class: column.number ? "number" : name });
    if (name === "trend") cell.innerHTML = '<svg viewBox="0 -2 100 104" preserveAspectRatio="none" aria-hidden="true"><path/></svg>';
    if (name === "started") cell.append(make("time"));
    return cell;
  }

  function drawCell(cell, column, name, one) {
    if (name === "trend") return attribute(cell.querySelector("path"), "d", steps(one.trend));
    if (name === "started") return one.started ? tell(cell.firstChild, one.started) : say(cell.firstChild, "n/a");
    const text = column.text ? column.text(one) : String(column.value(one));
    say(cell.text ?? cell, text || (name === "grows" || name === "gpus" ? "" : "n/a"));
    if (name === "command") attribute(cell, "title", text);
  }

  function steps(heights) {
    const step = 100 / Math.max(heights.length, 1);
    return heights.map((height, number) => `${number ? "L" : "M"}${(number * step).toFixed(1)},${100 - height}H${((number + 1) * step).toFixed(1)}`).join("");
  }

  function choose(key) {
    set.chosen = set.chosen === key ? "" : key;
    drawHolders();
    ask(true); // what is known of it comes with the next answer
  }

  function drawChosen() {
    show(part.chosen, Boolean(set.chosen));
    if (!set.chosen) return;
    const one = now.document?.holders?.[set.chosen];
    const facts = now.facts[set.chosen];
    const pid = set.chosen.split("-")[0];
    say(part.factTitle, one ? `${one.name}, pid ${one.pid}` : `Process ${pid} holds no pinned memory any more.`);
    if (!one || facts) drawFacts(part.factBody, one ? entries(facts) : []);
  }

  // ---- Begin

  if (!document.getElementById("pinscope-now-style"))
    document.head.append(make("link", { id: "pinscope-now-style", rel: "stylesheet", href: `/live/now.css?${options.version}` }));
  build();
  mount.replaceChildren(root);
  const seen = () => { if (!document.hidden && root.isConnected) ask(false); };
  document.addEventListener("visibilitychange", seen);
  poll();
  import(`/live/now_chart.js?${options.version}`).then(({ Chart }) => {
    now.chart = new Chart(part.chart, () => now.document && now.chart.draw(now.document, now.moments, Number(set.window)));
    draw();
  });
})();
