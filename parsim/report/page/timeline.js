// Where rows stand, and what hands do with the timeline.

class Layout {
  constructor(runs) {
    const ranks = runs.reduce((sum, run) => sum + run.ranks.length, 0), times = ranks < 8 ? 2 : 1;
    this.groups = [];
    this.rows = [];
    this.titles = [];
    this.byRun = runs.map(() => []);
    let top = 4;
    for (const run of runs) {
      if (runs.length > 1) { this.titles.push({ text: run.name, top }); top += 24; }
      run.ranks.forEach((rank, number) => {
        const sources = run.rows.filter((row) => row.rank === number);
        const group = { run, rank, label: rank.label, rows: [], compute: null };
        const beside = [9, 9, 9, 6, 5][Math.min(4, sources.length)] * times; // thin rows where several kinds overlap
        for (const source of sources) {
          const height = source.kind === "compute" ? 18 * times : beside;
          const row = { run, source, group, top, height };
          top += height + (source.kind === "compute" ? 2 : sources.length > 3 ? 0 : 1);
          group.rows.push(row);
          this.rows.push(row);
          this.byRun[run.number][source.place] = row;
          if (source.kind === "compute") group.compute = row;
        }
        top += 5;
        this.groups.push(group);
      });
    }
    this.height = top;
    this.measure(runs);
  }

  // The usual length of a forward, backward and weight-gradient pass and of how many ops it is, and the longest number of a micro-batch.
  measure(runs) {
    const lengths = {};
    this.longest = "0";
    for (const run of runs) for (const row of run.rows) for (const slot of row.passes || []) {
      if (!slot.letter || slot.instance < 0) continue;
      (lengths[slot.letter] ||= []).push([slot.end - slot.start, slot.last - slot.first]);
      if (`${slot.instance}`.length > this.longest.length) this.longest = `${slot.instance}`;
    }
    const median = (all) => all.sort((a, b) => a - b)[all.length >> 1];
    this.passes = {};
    for (const [letter, all] of Object.entries(lengths)) this.passes[letter] = { length: median(all.map((pair) => pair[0])), ops: median(all.map((pair) => pair[1])) };
  }

  usual(letter) { return this.passes[letter] || { length: 0, ops: 1 }; }

  numbered(context, scale) {
    context.font = `600 ${10.5}px system-ui, sans-serif`;
    const need = context.measureText("0".repeat(this.longest.length)).width + 4;
    return Object.fromEntries(Object.entries(this.passes).map(([letter, pass]) => [letter, pass.length * scale >= need]));
  }

  visible(from, to) { return this.rows.filter((row) => row.top + row.height >= from && row.top <= to); }
  rowOf(run, place) { return this.byRun[run.number][place]; }
  rowAt(y) { return this.rows.find((row) => y >= row.top - 1 && y <= row.top + row.height + 1); }
}

class Timeline {
  constructor(box, runs, view, styles) {
    Object.assign(this, { box, runs, view, scroll: 0, selected: null, shown: null });
    this.layout = new Layout(runs);
    this.painter = new Painter(this.layout, styles);
    this.plotHeight = Math.min(this.layout.height, 660);
    this.scroller = this.part("scroller", box);
    this.spacer = this.part("spacer", this.scroller);
    this.stuck = this.part("stuck", this.spacer);
    this.tip = this.part("tip", box);
    this.tip.hidden = true;
    this.details = document.getElementById("details");
    this.scroller.style.maxHeight = `${this.plotHeight + 44}px`;
    this.spacer.style.height = `${this.layout.height + 44}px`;
    this.scroller.addEventListener("scroll", () => { this.scroll = this.scroller.scrollTop; this.hide(); this.view.redraw(); });
    box.addEventListener("keydown", (event) => this.key(event));
    for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => this.act(button.dataset.do));
    box.dataset.rows = JSON.stringify(this.layout.rows.slice(0, 400).map((row) => [row.run.number, row.group.label, row.source.kind, row.top, row.height]));
    this.draw(readTheme());
  }

  part(name, parent) {
    const element = document.createElement("div");
    element.className = name;
    parent.append(element);
    return element;
  }

  draw(theme) {
    if (this.chart) {
      this.view.charts.splice(this.view.charts.indexOf(this.chart), 1);
      this.chart.destroy();
    }
    this.painter.setTheme(theme);
    const options = common(this.view, theme, this.scroller.clientWidth || 1200, this.plotHeight + 42);
    options.scales.y = { range: () => [0, 1] };
    options.axes.push({ scale: "y", size: GUTTER, grid: { show: false }, ticks: { show: false }, values: () => [] });
    options.series = [{}, { paths: () => null, points: { show: false } }];
    options.hooks.draw.unshift((chart) => this.paint(chart));
    options.hooks.setCursor = [(chart) => this.hover(chart)];
    this.chart = new uPlot(options, [[0, this.view.length], [null, null]], this.stuck);
    this.chart.selects = true;
    this.view.charts.push(this.chart);
    this.stuck.dataset.view = this.view.range.join(" ");
    this.chart.over.addEventListener("click", (event) => this.click(event));
    this.chart.over.addEventListener("mouseleave", () => this.hide());
    wheel(this.chart, this.view);
    this.pinch();
  }

  paint(chart) {
    const began = performance.now();
    this.painter.paint(chart.ctx, chart.bbox, this.view.range, this.scroll, devicePixelRatio, this.selection());
    if (this.range !== this.view.range) this.hide(); // the view moved under the pointer
    this.range = this.view.range;
    this.box.dataset.view = this.view.range.join(" ");
    this.box.dataset.paint = (performance.now() - began).toFixed(1);
  }

  selection() {
    if (this.shown) return { run: this.shown, chain: this.shown.critical, span: null };
    if (!this.selected) return null;
    return { run: this.selected.run, chain: this.selected.chain, span: this.selected.span };
  }

  // What is at a place of the plot: a span, or the pass that is painted for it.
  find(x, y) {
    const row = this.layout.rowAt(y - this.chart.over.offsetTop + this.scroll);
    if (!row) return null;
    const scale = this.chart.over.clientWidth / (this.view.range[1] - this.view.range[0]);
    const time = this.view.range[0] + x / scale, near = 3 / scale, { run, source } = row;
    const i = firstEndingAfter(run.end, source.first, source.last, time - near);
    let best = -1;
    for (let j = i; j < source.last && run.start[j] <= time + near; j++) {
      best = j;
      if (run.start[j] <= time && run.end[j] >= time) break;
    }
    const slots = source.slots && firstEndingAfter(source.slotEnds || [], 0, source.slots.length, time);
    const slot = slots !== null && slots !== undefined && source.slots && source.slots[slots];
    const pass = slot && slot.start <= time && slot.letter && !this.painter.opens(slot) ? slot : null;
    if (best < 0 && !pass) return { run, row, time, span: -1 };
    return { run, row, time, span: pass ? pass.first : best, pass };
  }

  hover(chart) {
    const { left, top } = chart.cursor;
    if (left < 0 || !chart.over.matches(":hover")) return this.hide();
    const found = this.find(left, top + chart.over.offsetTop);
    if (!found || (found.span < 0 && found.row.source.kind !== "compute")) return this.hide();
    this.tip.textContent = found.span < 0 ? this.idle(found) : describe(found.run, found.span, found.pass);
    this.tip.hidden = false;
    const x = left + chart.over.offsetLeft, y = top + chart.over.offsetTop - 0, room = this.box.clientWidth;
    const width = this.tip.offsetWidth, height = this.tip.offsetHeight;
    this.tip.style.left = `${x + 16 + width > room ? Math.max(0, x - width - 12) : x + 16}px`;
    this.tip.style.top = `${y + 16 + height > this.box.clientHeight ? Math.max(0, y - height - 8) : y + 16}px`;
  }

  // A bubble, and what ends it.
  idle({ run, row, time }) {
    const next = firstEndingAfter(run.end, row.source.first, row.source.last, time);
    const last = next > row.source.first ? run.end[next - 1] : 0, until = next < row.source.last ? run.start[next] : run.length;
    const cause = next < row.source.last ? run.cause[next] : -1;
    const why = cause < 0 ? "nothing follows" : `awaits ${spanText(run, cause)} on ${placeText(run, cause)}`;
    return `computes nothing · ${row.group.label}\nfrom ${timeText(last)}, ${timeText(until - last)} (${((100 * (until - last)) / run.length).toFixed(2)} % of the step)\n${why}`;
  }

  hide() { this.tip.hidden = true; }

  click(event) {
    const over = this.chart.over.getBoundingClientRect();
    if (this.moved) { this.moved = false; return; }
    const found = this.find(event.clientX - over.left, event.clientY - over.top + this.chart.over.offsetTop);
    if (!found || found.span < 0) return this.clear();
    const same = this.selected && this.selected.run === found.run && this.selected.span === found.span;
    if (same) this.clear(); else this.choose(found.run, found.span);
  }

  choose(run, span) {
    this.shown = null;
    this.pressed();
    const chain = chainOf(run, span);
    this.selected = { run, span, chain };
    const first = chain[0];
    const length = chain.length === 1 ? "waits for nothing" : `a chain of ${chain.length.toLocaleString("en")} causes back to ${spanText(run, first)} on ${placeText(run, first)}, which waits for nothing`;
    this.details.textContent = `${describe(run, span).replaceAll("\n", " · ")} · ${length}.`;
    Object.assign(this.details.dataset, { span, chain: chain.length, start: run.start[span], end: run.end[span] });
    const rank = run.ranks[run.rows[run.rowOf[span]].rank].rank;
    for (const chart of this.memory || []) if (chart.run === run) chart.showRank(rank);
    this.reveal(run, span);
    this.view.redraw();
  }

  // Bring the selected span into view.
  reveal(run, span) {
    const [from, to] = this.view.range, width = to - from, row = this.layout.rowOf(run, run.rowOf[span]);
    if (run.end[span] < from || run.start[span] > to) {
      const middle = (run.start[span] + run.end[span]) / 2;
      this.view.set(middle - width / 2, middle + width / 2);
    }
    if (row.top < this.scroll || row.top + row.height > this.scroll + this.plotHeight) this.scroller.scrollTop = row.top - this.plotHeight / 3;
  }

  clear() {
    this.selected = this.shown = null;
    this.pressed();
    this.details.textContent = "Nothing selected.";
    for (const name of ["span", "chain", "start", "end"]) delete this.details.dataset[name];
    this.view.redraw();
  }

  pressed() { document.querySelector("[data-do=critical]").setAttribute("aria-pressed", String(Boolean(this.shown))); }

  critical() {
    const at = this.runs.indexOf(this.shown);
    this.selected = null;
    this.shown = this.runs[at + 1] || null;
    this.pressed();
    this.details.textContent = this.shown
      ? `Critical path${this.runs.length > 1 ? ` of ${this.shown.name}` : ""}: ${this.shown.critical.length.toLocaleString("en")} spans that decide how long the step takes.`
      : "Critical path hidden.";
    if (this.shown) this.details.dataset.chain = this.shown.critical.length;
    this.view.redraw();
  }

  cause() {
    if (!this.selected) return this.start();
    const { run, span } = this.selected;
    if (run.cause[span] >= 0) this.choose(run, run.cause[span]);
  }

  effect() {
    if (!this.selected) return this.start();
    const { run, span } = this.selected, next = effectsOf(run, span);
    if (next.length) this.choose(run, next[0]);
  }

  // The first span that is visible.
  start() {
    const row = this.layout.visible(this.scroll, this.scroll + this.plotHeight).find((candidate) => candidate.source.last > candidate.source.first);
    if (row) this.choose(row.run, Math.min(row.source.last - 1, firstEndingAfter(row.run.end, row.source.first, row.source.last, this.view.range[0])));
  }

  step(by) {
    if (!this.selected) return this.start();
    const { run, span } = this.selected, row = run.rows[run.rowOf[span]];
    const next = Math.max(row.first, Math.min(row.last - 1, span + by));
    this.choose(run, next);
  }

  // Up and down go from compute row to compute row.
  climb(by) {
    if (!this.selected) return this.start();
    const { run, span } = this.selected, group = this.layout.rowOf(run, run.rowOf[span]).group;
    const other = this.layout.groups[this.layout.groups.indexOf(group) + by];
    if (!other || !other.compute || other.compute.source.last === other.compute.source.first) return;
    const { first, last } = other.compute.source;
    this.choose(other.run, Math.min(last - 1, firstEndingAfter(other.run.end, first, last, run.start[span])));
  }

  fit() {
    if (!this.selected) return this.view.all();
    const { run, span } = this.selected, width = run.end[span] - run.start[span];
    this.view.set(run.start[span] - width, run.end[span] + width);
  }

  // The parts of a step that repeats itself: what comes before the first period, one of them, what comes after the last. Of several
  // runs: until half of those that repeat themselves have had a first period, and as long as the longest period where all are in theirs.
  partOf(name) {
    const repeating = this.runs.filter((run) => run.periods.length), { length } = this.view;
    const longest = repeating.map((run) => run.periods.reduce((one, other) => (other.length * other.count > one.length * one.count ? other : one)));
    const ends = repeating.map((run) => run.periods[run.periods.length - 1]).map((last) => last.begin + (last.count - 1) * last.length);
    const filled = repeating.map((run) => run.periods[0].begin + run.periods[0].length).sort((one, other) => one - other);
    const begin = Math.max(...longest.map((one) => one.begin));
    const parts = {
      fill: [-0.004 * length, filled[(filled.length - 1) >> 1]],
      period: [begin, begin + Math.max(...longest.map((one) => one.length))],
      drain: [Math.min(...ends), 1.004 * length],
    };
    this.view.set(...parts[name]);
  }

  // Steps of very many passes open where they can be read.
  open() {
    if (!this.runs.some((run) => run.periods.length)) return;
    for (const button of document.querySelectorAll(".parts-of")) button.hidden = this.runs.length > 1 && button.dataset.do === "drain"; // several end at different times
    this.partOf("fill");
  }

  act(name) {
    const acts = { fill: () => this.partOf("fill"), period: () => this.partOf("period"), drain: () => this.partOf("drain"), in: () => this.view.zoom(0.5), out: () => this.view.zoom(2), all: () => this.view.all(), fit: () => this.fit(), critical: () => this.critical(), previous: () => this.cause(), next: () => this.effect(), clear: () => this.clear() };
    acts[name]();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      w: () => this.view.zoom(0.6), s: () => this.view.zoom(1 / 0.6), a: () => this.view.pan(-0.2), d: () => this.view.pan(0.2),
      0: () => this.view.all(), f: () => this.fit(), c: () => this.critical(), Enter: () => this.cause(), Backspace: () => this.effect(), Escape: () => this.clear(),
      ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1), ArrowUp: () => this.climb(-1), ArrowDown: () => this.climb(1),
    };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    this.hide();
    act();
  }

  // A drag that selected a range is no click.
  pinch() {
    let from = null;
    this.chart.over.addEventListener("mousedown", (event) => { from = event.clientX; this.moved = false; });
    this.chart.over.addEventListener("mouseup", (event) => { this.moved = from !== null && Math.abs(event.clientX - from) >= 3; });
  }
}
