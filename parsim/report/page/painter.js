// Spans on a canvas. Wide ones are rectangles with labels; thin ones are summed per pixel column into one strip per row, so that
// cost is bounded by pixels and colours are true averages of the area.

const THIN = 3, KERNEL = 4, LABEL = 40, NAMED = 80;

function readTheme() {
  const css = getComputedStyle(document.documentElement);
  const theme = {};
  for (const name of ["paper", "card", "ink", "soft", "line", "bubble", "hatch", "focus"]) theme[name] = css.getPropertyValue(`--${name}`).trim();
  return theme;
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const hex = (rgb) => `#${rgb.map((v) => Math.round(v).toString(16).padStart(2, "0")).join("")}`;
const mix = (a, b, share) => hex(channels(a).map((v, i) => v * share + channels(b)[i] * (1 - share)));
const darker = (colour) => hex(channels(colour).map((v) => v * 0.6));

function hatch(context, colour, period, width, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = period;
  const pen = tile.getContext("2d");
  if (ground) { pen.fillStyle = ground; pen.fillRect(0, 0, period, period); }
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.beginPath();
  for (const shift of [-period, 0, period]) { pen.moveTo(shift, period); pen.lineTo(shift + period, 0); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

class Painter {
  constructor(layout, styles) {
    this.layout = layout;
    this.styles = styles;
    this.strip = document.createElement("canvas");
    this.setTheme(readTheme());
  }

  setTheme(theme) {
    this.theme = theme;
    this.patterns = null;
    this.fades = {};
    this.looksOf = new Map();
    this.looks = {};
    for (const [name, style] of Object.entries(this.styles.roles)) {
      const colour = name === "offload" ? theme.ink : style.colour;
      const hidden = mix(colour, theme.paper, 0.45);
      const rgb = channels(colour), pale = channels(hidden);
      const mixes = Array.from({ length: 256 }, (_, share) => pale.map((v, c) => v + ((rgb[c] - v) * share) / 255));
      this.looks[name] = { rgb, mixes, colour, hidden, edge: name === "offload" ? theme.soft : darker(colour), text: style.text };
    }
  }

  makePatterns(context, ratio) {
    this.patterns = { ratio, bubble: hatch(context, this.theme.hatch, Math.round(8 * ratio), 1.2 * ratio, this.theme.bubble), hidden: {} };
    for (const [name, look] of Object.entries(this.looks)) this.patterns.hidden[name] = hatch(context, look.colour, Math.round(5 * ratio), 1.4 * ratio, look.hidden);
  }

  // `box` is the plot in device pixels, `view` [from, to] in seconds, `scroll` in CSS pixels.
  paint(context, box, view, scroll, ratio, selection) {
    if (!this.patterns || this.patterns.ratio !== ratio) this.makePatterns(context, ratio);
    Object.assign(this, { context, box, view, ratio, scale: box.width / (view[1] - view[0]), offset: box.top - scroll * ratio });
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
    const rows = this.layout.visible(scroll, scroll + box.height / ratio);
    const ranks = [...new Set(rows.map((row) => row.group))];
    this.begin(rows.length + ranks.length, box.width);
    const later = rows.map((row, line) => this.row(row, line, rows.length + ranks.indexOf(row.group)));
    this.blit(rows, ranks);
    later.forEach((wide, line) => this.wide(rows[line], wide));
    for (const run of new Set(rows.map((row) => row.run))) if (run.marks.length) this.marks(run, rows.filter((row) => row.run === run));
    if (selection) this.veil(selection);
    context.restore();
    this.captions(rows, scroll);
  }

  x(time) { return this.box.left + (time - this.view[0]) * this.scale; }
  top(row) { return Math.round(this.offset + row.top * this.ratio); }
  height(row) { return Math.max(1, Math.round(row.height * this.ratio)); }

  begin(lines, width) {
    this.width = Math.max(1, Math.round(width));
    const size = lines * this.width * 4;
    if (!this.sums || this.sums.length !== size) {
      this.sums = new Float32Array(size);
      this.strip.width = this.width;
      this.strip.height = Math.max(1, lines);
      this.pen = this.strip.getContext("2d");
      this.image = this.pen.createImageData(this.width, Math.max(1, lines));
    } else this.sums.fill(0);
  }

  // Add a stretch of one colour to a line of the strip.
  add(line, start, end, rgb, weight) {
    const from = Math.max(0, (start - this.view[0]) * this.scale), to = Math.min(this.width, (end - this.view[0]) * this.scale);
    const last = Math.ceil(to);
    for (let x = Math.floor(from); x < last; x++) {
      const cover = ((to < x + 1 ? to : x + 1) - (from > x ? from : x)) * weight, at = (line * this.width + x) * 4, sums = this.sums;
      sums[at] += rgb[0] * cover;
      sums[at + 1] += rgb[1] * cover;
      sums[at + 2] += rgb[2] * cover;
      sums[at + 3] += cover;
    }
  }

  // How each kind of span of a run is drawn.
  looksFor(run) {
    if (!this.looksOf.has(run)) this.looksOf.set(run, run.whats.map((what) => this.looks[what.role]));
    return this.looksOf.get(run);
  }

  // Sum thin spans; return the wide ones.
  row(row, line, underline) {
    if (row.source.kind === "compute") {
      this.context.fillStyle = this.patterns.bubble;
      const from = this.x(0), to = this.x(row.run.length);
      this.context.fillRect(Math.max(this.box.left, from), this.top(row), Math.min(to, this.box.left + this.box.width) - Math.max(this.box.left, from), this.height(row));
      if (row.source.slots) return this.slots(row, line);
    }
    const { run, source } = row, wide = [], thin = THIN * this.ratio, [from, to] = this.view;
    const talks = source.kind.endsWith("_comm") || source.kind === "offload";
    const looks = this.looksFor(run);
    for (let i = firstEndingAfter(run.end, source.first, source.last, from); i < source.last && run.start[i] < to; i++) {
      const start = run.start[i], end = run.end[i], look = looks[run.what[i]], share = run.share[i], busy = run.busy[i] / 255;
      if ((end - start) * this.scale >= thin) wide.push(i);
      else this.add(line, start, end, talks ? look.mixes[share] : look.rgb, busy);
      if (talks && share === 255) this.add(underline, start, end, look.rgb, busy);
    }
    for (let i = firstEndingAfter(run.bareEnd, source.bareFirst, source.bareLast, from); i < source.bareLast && run.bareStart[i] < to; i++)
      this.add(underline, run.bareStart[i], run.bareEnd[i], this.looks[source.kind === "pipeline_comm" ? "pipeline" : source.kind === "offload" ? "offload" : "communication"].rgb, 1);
    return wide;
  }

  // Passes while they are narrow, their kernels once there is room: all or none of a kind of pass.
  slots(row, line) {
    const { run, source } = row, wide = [], thin = THIN * this.ratio, [from, to] = this.view;
    const ends = (source.slotEnds ||= Float64Array.from(source.slots, (slot) => slot.end)), looks = this.looksFor(run);
    for (let s = firstEndingAfter(ends, 0, ends.length, from); s < ends.length && source.slots[s].start < to; s++) {
      const slot = source.slots[s];
      if (this.opens(slot)) {
        for (let i = firstEndingAfter(run.end, slot.first, slot.last, from); i < slot.last && run.start[i] < to; i++) {
          if ((run.end[i] - run.start[i]) * this.scale >= thin) wide.push(i);
          else this.add(line, run.start[i], run.end[i], looks[run.what[i]].rgb, run.busy[i] / 255);
        }
      } else if ((slot.end - slot.start) * this.scale >= thin) wide.push(slot);
      else {
        this.add(line, slot.start, slot.end, this.faded(slot.role, slot.busy).rgb, 1 - slot.again);
        this.add(line, slot.start, slot.end, this.faded("recompute", slot.busy).rgb, slot.again);
      }
    }
    return wide;
  }

  // A colour over the grey of a bubble: a pass that computes half of its time is half as strong.
  faded(role, busy) {
    const key = `${role} ${Math.round(busy * 50)}`;
    if (!this.fades[key]) {
      const colour = mix(this.looks[role].colour, this.theme.bubble, Math.round(busy * 50) / 50);
      this.fades[key] = { colour, rgb: channels(colour) };
    }
    return this.fades[key];
  }

  opens(slot) {
    const usual = this.layout.usual(slot.letter);
    return !slot.letter || (slot.last - slot.first > 1 && Math.min(usual.length / NAMED, usual.length / usual.ops / KERNEL) * this.scale >= this.ratio);
  }

  blit(rows, ranks) {
    const { context, width, sums } = this, pixels = this.image.data;
    pixels.fill(0);
    for (let at = 0; at < sums.length; at += 4) {
      const cover = sums[at + 3];
      if (!cover) continue;
      pixels[at] = sums[at] / cover;
      pixels[at + 1] = sums[at + 1] / cover;
      pixels[at + 2] = sums[at + 2] / cover;
      pixels[at + 3] = Math.min(255, 255 * cover);
    }
    this.pen.putImageData(this.image, 0, 0);
    context.imageSmoothingEnabled = false;
    rows.forEach((row, line) => context.drawImage(this.strip, 0, line, width, 1, this.box.left, this.top(row), width, this.height(row)));
    this.underlines = ranks.map((group, i) => [group, rows.length + i]);
  }

  // What compute waits for, as a line under the gap; drawn last so that wide spans do not hide it.
  drawUnderlines() {
    const thick = Math.round(2 * this.ratio);
    for (const [group, line] of this.underlines)
      this.context.drawImage(this.strip, 0, line, this.width, 1, this.box.left, this.top(group.compute) + this.height(group.compute), this.width, thick);
  }

  wide(row, spans) {
    const numbered = this.layout.numbered(this.context, this.scale / this.ratio);
    for (const item of spans) {
      if (typeof item === "object") this.pass(row, item, numbered);
      else this.span(row, item, numbered);
    }
    if (row === row.group.rows[row.group.rows.length - 1]) this.drawUnderlines();
  }

  bounds(start, end) {
    const from = this.x(start), to = this.x(end), gap = to - from > 4 * this.ratio ? this.ratio : 0;
    return [from, Math.max(1, to - from - gap)];
  }

  pass(row, slot, numbered) {
    const { context, ratio } = this, look = this.looks[slot.role], top = this.top(row), height = this.height(row);
    const [x, width] = this.bounds(slot.start, slot.end);
    context.fillStyle = this.faded(slot.role, slot.busy).colour;
    context.fillRect(x, top, width, height);
    if (slot.again > 0.01) {
      context.fillStyle = this.faded("recompute", slot.busy).colour;
      context.fillRect(x, top, width, Math.max(1, Math.round(height * slot.again)));
    }
    if (width >= 6 * ratio) this.edge(x, top, width, height, look.edge);
    if (!slot.letter || !numbered[slot.letter]) return;
    const text = this.layout.usual(slot.letter).length * this.scale >= LABEL * ratio ? `${slot.letter} ${slot.instance}` : `${slot.instance}`;
    this.label(text, x, top, width, height, slot.busy > 0.6 ? look.text : this.theme.ink);
  }

  span(row, i, numbered) {
    const { context, ratio } = this, { run, source } = row, what = run.whats[run.what[i]], look = this.looks[what.role];
    const top = this.top(row), height = this.height(row), [x, width] = this.bounds(run.start[i], run.end[i]);
    const talks = source.kind.endsWith("_comm") || source.kind === "offload";
    const hidden = talks && run.share[i] < 255, busy = run.busy[i] / 255;
    if (talks) context.globalAlpha = busy;
    context.fillStyle = !talks ? this.faded(what.role, busy).colour : !hidden ? look.colour : width >= 6 * ratio ? this.patterns.hidden[what.role] : look.hidden;
    context.fillRect(x, top, width, height);
    context.globalAlpha = 1;
    if (what.merged && what.again > 0.01) {
      context.fillStyle = this.faded("recompute", busy).colour;
      context.fillRect(x, top, width, Math.max(1, Math.round(height * what.again)));
    }
    if (hidden && run.share[i]) this.bare(row, i, look);
    if (width >= 6 * ratio && !talks) this.edge(x, top, width, height, look.edge);
    if (talks || height < 12 * ratio) return;
    const letter = what.slot.slice(0, 1), number = run.instance[i] ? `${run.instance[i] - 1}` : "";
    let text = "";
    if (width >= NAMED * ratio) text = what.merged ? `${letter} ${number}` : what.name;
    else if (letter && number && numbered[letter] && (what.merged || !source.slots)) text = width >= LABEL * ratio ? `${letter} ${number}` : number;
    if (text) this.label(text, x, top, width, height, look.text);
  }

  // The stretches of a partly exposed span that nothing hides.
  bare(row, span, look) {
    const { run, source } = row;
    this.context.fillStyle = look.colour;
    for (let i = firstEndingAfter(run.bareEnd, source.bareFirst, source.bareLast, Math.max(run.start[span], this.view[0])); i < source.bareLast; i++) {
      if (run.bareStart[i] >= Math.min(run.end[span], this.view[1])) break;
      const from = this.x(Math.max(run.bareStart[i], run.start[span])), to = this.x(Math.min(run.bareEnd[i], run.end[span]));
      this.context.fillRect(from, this.top(row), Math.max(0.5, to - from), this.height(row));
    }
  }

  edge(x, top, width, height, colour) {
    const line = Math.max(1, Math.round(this.ratio));
    this.context.fillStyle = colour;
    this.context.fillRect(x, top, width, line);
    this.context.fillRect(x, top + height - line, width, line);
    this.context.fillRect(x, top, line, height);
    this.context.fillRect(x + width - line, top, line, height);
  }

  // Centred in the visible part, or not at all.
  label(text, x, top, width, height, colour) {
    const { context, box, ratio } = this;
    const from = Math.max(x, box.left), to = Math.min(x + width, box.left + box.width);
    context.font = `600 ${10.5 * ratio}px system-ui, sans-serif`;
    if (context.measureText(text).width > to - from - 3 * ratio) return;
    context.fillStyle = colour;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(text, (from + to) / 2, top + height / 2 + 0.5 * ratio);
  }

  // Where something breaks or is over: a line through the rows of its run, with a text beside, towards the middle.
  marks(run, rows) {
    const { context, box, theme, ratio } = this, last = rows[rows.length - 1];
    const top = this.top(rows[0]), bottom = this.top(last) + this.height(last);
    context.font = `${10.5 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "top";
    run.marks.forEach(([time, text], i) => {
      const x = this.x(time), right = x > box.left + box.width / 2, width = context.measureText(text).width, gap = 4 * ratio;
      if (x < box.left || x > box.left + box.width) return;
      context.fillStyle = theme.ink;
      context.fillRect(x - ratio / 2, top, Math.max(1, ratio), bottom - top);
      const line = top + ((i % 6) * 14 + 1) * ratio, from = right ? x - gap - width : x + gap;
      context.globalAlpha = 0.8;
      context.fillStyle = theme.paper;
      context.fillRect(from - ratio, line, width + 2 * ratio, 12 * ratio);
      context.globalAlpha = 1;
      context.fillStyle = theme.ink;
      context.textAlign = "left";
      context.fillText(text, from, line);
    });
  }

  // Everything but the chain recedes; the chain keeps its colours and is joined end to start.
  veil({ run, chain, span }) {
    const { context, box, theme, ratio } = this;
    context.globalAlpha = 0.55;
    context.fillStyle = theme.paper;
    context.fillRect(box.left, box.top, box.width, box.height);
    context.globalAlpha = 1;
    const rowOf = (i) => this.layout.rowOf(run, run.rowOf[i]);
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.6 * ratio;
    context.beginPath();
    let last = -1;
    chain.forEach((i, place) => {
      const row = rowOf(i), [from, to] = this.view;
      const shown = run.end[i] >= from && run.start[i] <= to;
      if (shown) {
        const x = Math.round(this.x(run.start[i]) * 2);
        if (x !== last || run.end[i] - run.start[i] > 2 / this.scale) this.span(row, i, {});
        last = x;
      }
      if (!place) return;
      const before = chain[place - 1], other = rowOf(before);
      if (other === row || run.end[before] > to || run.start[i] < from) return;
      if (other.group === row.group && (run.end[i] - run.start[i]) * this.scale < 6 * ratio) return; // between rows of a rank only where there is room
      context.moveTo(this.x(run.end[before]), this.top(other) + this.height(other) / 2);
      context.lineTo(this.x(run.start[i]), this.top(row) + this.height(row) / 2);
    });
    context.strokeStyle = theme.ink;
    context.stroke();
    if (span === null) return;
    const row = rowOf(span), [x, width] = this.bounds(run.start[span], run.end[span]);
    context.strokeStyle = theme.focus;
    context.lineWidth = 2 * ratio;
    context.strokeRect(x - ratio, this.top(row) - ratio, width + 2 * ratio, this.height(row) + 2 * ratio);
  }

  // Names of ranks and runs, left of the plot.
  captions(rows, scroll) {
    const { context, box, ratio, theme } = this;
    context.save();
    context.beginPath();
    context.rect(0, box.top, box.left + box.width, box.height);
    context.clip();
    context.textBaseline = "middle";
    context.fillStyle = theme.soft;
    context.textAlign = "right";
    context.font = `${11.5 * ratio}px system-ui, sans-serif`;
    for (const row of rows) if (row === row.group.compute) context.fillText(row.group.label, box.left - 8 * ratio, this.top(row) + this.height(row) / 2);
    context.textAlign = "left";
    context.fillStyle = theme.ink;
    context.font = `600 ${12 * ratio}px system-ui, sans-serif`;
    for (const title of this.layout.titles) context.fillText(title.text, 8 * ratio, this.offset + (title.top + 10) * ratio);
    context.restore();
  }
}
