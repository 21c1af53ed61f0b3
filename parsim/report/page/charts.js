// Shared by all charts: one range of time, axes with one unit each, memory as stacked steps.

const GIB = 2 ** 30, GUTTER = 104;

class View {
  constructor(length) {
    this.length = length;
    this.range = [-0.004 * length, 1.004 * length];
    this.charts = [];
    this.pending = false;
    this.drawn = this.range;
  }

  // The one place where ranges are clamped.
  set(from, to) {
    const least = this.length * 1e-7, width = Math.min(this.length * 1.02, Math.max(least, to - from));
    const low = -0.01 * this.length, high = 1.01 * this.length;
    from = Math.max(low, Math.min(from, high - width));
    this.range = [from, from + width];
    this.redraw();
  }

  all() { this.set(-0.004 * this.length, 1.004 * this.length); }
  zoom(factor, centre = (this.range[0] + this.range[1]) / 2) {
    this.set(centre - (centre - this.range[0]) * factor, centre + (this.range[1] - centre) * factor);
  }
  pan(share) {
    const by = share * (this.range[1] - this.range[0]);
    this.set(this.range[0] + by, this.range[1] + by);
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  // Where only the selection changed, the charts that show it are painted again without new axes.
  draw() {
    const moved = this.range !== this.drawn;
    this.drawn = this.range;
    for (const chart of this.charts) {
      if (!moved) { if (chart.selects) chart.redraw(false, false); continue; }
      chart.setScale("x", { min: this.range[0], max: this.range[1] });
      chart.root.parentElement.dataset.view = this.range.join(" ");
    }
  }
}

// Options that every chart has: the common range, drag to select it, a synchronised cursor.
function common(view, theme, width, height) {
  const time = {
    scale: "x", side: 2, size: 34, stroke: theme.soft, font: "11.5px system-ui, sans-serif", grid: { stroke: theme.line, width: 1 }, ticks: { show: false }, space: 80,
    values: (chart, splits) => {
      const [factor] = unitOf(view.range[1] - view.range[0]);
      const step = splits.length > 1 ? Math.abs(splits[1] - splits[0]) / factor : 1;
      let digits = 0; // as many as the step needs: 0.25 apart are 0.25, 0.50, not 0.3, 0.5
      while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits) digits++;
      return splits.map((at) => (at === null ? null : (at / factor).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })));
    },
  };
  return {
    width, height, padding: [8, 14, 0, 0], legend: { show: false },
    scales: { x: { time: false, range: () => view.range } },
    axes: [time],
    cursor: { sync: { key: "parsim" }, drag: { x: true, y: false, setScale: false }, y: false, points: { show: false }, focus: { prox: -1 }, bind: { dblclick: () => () => { view.all(); } } },
    hooks: {
      setSelect: [(chart) => {
        if (chart.select.width < 3) return;
        const from = chart.posToVal(chart.select.left, "x"), to = chart.posToVal(chart.select.left + chart.select.width, "x");
        chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        view.set(from, to);
      }],
      draw: [(chart) => {
        const { ctx, bbox } = chart, ratio = devicePixelRatio;
        ctx.save();
        ctx.fillStyle = theme.soft;
        ctx.font = `${11.5 * ratio}px system-ui, sans-serif`;
        ctx.textAlign = "right";
        ctx.textBaseline = "top";
        ctx.fillText(`time [${unitOf(view.range[1] - view.range[0])[1]}]`, bbox.left - 8 * ratio, bbox.top + bbox.height + 10 * ratio);
        ctx.restore();
      }],
    },
  };
}

// Wheel on a plot: with ctrl it zooms at the pointer, with shift it pans, alone it scrolls the page.
function wheel(chart, view) {
  chart.over.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const by = event.deltaY || event.deltaX;
    if (event.shiftKey) view.pan(by / 800);
    else view.zoom(Math.exp(by / 100 * 0.4), chart.posToVal(event.clientX - chart.over.getBoundingClientRect().left, "x"));
  }, { passive: false });
}

class MemoryChart {
  constructor(parent, run, view, styles, runs) {
    Object.assign(this, { run, view, styles, number: 0 });
    const several = runs.length > 1;
    this.most = (1.08 * Math.max(...runs.flatMap((other) => other.memory.map((memory) => Math.max(memory.capacity, memory.peak))))) / GIB;
    const bar = document.createElement("div");
    bar.className = "controls";
    bar.append(several ? `${run.name}: ` : "", "memory over time of ");
    this.select = document.createElement("select");
    this.select.setAttribute("aria-label", "rank whose memory is shown");
    run.memory.forEach((memory, i) => {
      const rank = run.ranks.find((candidate) => candidate.rank === memory.rank);
      this.select.add(new Option(`${rank.label}${rank.label.startsWith("rank") ? "" : ` (rank ${memory.rank})`}: peak ${(memory.peak / GIB).toFixed(1)} GiB`, String(i)));
    });
    this.select.addEventListener("change", () => this.show(Number(this.select.value)));
    bar.append(this.select);
    this.box = document.createElement("div");
    this.box.className = "chart";
    this.legend = document.createElement("div");
    this.legend.className = "legend";
    parent.append(bar, this.box, this.legend);
    this.show(0);
  }

  showRank(rank) {
    const found = this.run.memory.findIndex((memory) => memory.rank === rank);
    if (found >= 0 && found !== this.number) this.show(found);
  }

  show(number) {
    this.number = number;
    this.select.value = String(number);
    const memory = this.run.memory[number], count = memory.times.length;
    const times = [...memory.times, Math.max(this.run.length, count ? memory.times[count - 1] : 0)];
    this.names = memory.categories;
    const sums = [];
    memory.levels.forEach((levels, i) => {
      const below = i ? sums[i - 1] : null;
      const column = Array.from(levels, (level, at) => level / GIB + (below ? below[at] : 0));
      column.push(column[column.length - 1]);
      sums.push(column);
    });
    this.sums = sums;
    this.data = [times, ...[...sums].reverse()]; // painted top-down: each fill covers what is below it
    this.draw(readTheme());
  }

  draw(theme) {
    if (this.chart) {
      this.view.charts.splice(this.view.charts.indexOf(this.chart), 1);
      this.chart.destroy();
    }
    const memory = this.run.memory[this.number], options = common(this.view, theme, this.box.clientWidth || 1200, 230);
    options.scales.y = { range: () => [0, this.most] };
    options.axes.push({ scale: "y", size: GUTTER, stroke: theme.soft, font: "11.5px system-ui, sans-serif", grid: { stroke: theme.line, width: 1 }, ticks: { show: false }, label: "GiB", labelSize: 18, labelFont: "11.5px system-ui, sans-serif", values: (chart, splits) => splits.map((at) => at.toLocaleString("en")) });
    const steps = uPlot.paths.stepped({ align: 1 });
    options.series = [{}, ...[...this.names].reverse().map((name) => this.series(name, theme, steps))];
    options.hooks.draw.push((chart) => this.marks(chart, theme, memory));
    options.hooks.setCursor = [(chart) => this.write(chart.cursor.idx, chart.cursor.left)];
    this.chart = new uPlot(options, this.data, this.box);
    this.view.charts.push(this.chart);
    this.box.dataset.view = this.view.range.join(" ");
    wheel(this.chart, this.view);
    this.write(null, -1);
  }

  series(name, theme, steps) {
    const style = this.styles.categories[name] || { colour: "#8a929c", label: name };
    const flat = mix(style.colour, theme.paper, 0.8);
    const fill = name === "fragmentation" || name === "workspace"
      ? (chart) => hatch(chart.ctx, mix(style.colour, theme.ink, 0.6), Math.round(6 * devicePixelRatio), devicePixelRatio, flat)
      : flat;
    return { label: style.label, stroke: mix(style.colour, theme.ink, 0.85), width: 1, fill, paths: steps, points: { show: false } };
  }

  // The capacity as a dashed line, the peak as a point, both with their values.
  marks(chart, theme, memory) {
    const { ctx, bbox } = chart, ratio = devicePixelRatio, y = chart.valToPos(memory.capacity / GIB, "y", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 8 * ratio, bbox.width, bbox.height + 8 * ratio);
    ctx.clip();
    ctx.strokeStyle = "#d55e00";
    ctx.lineWidth = 1.6 * ratio;
    ctx.setLineDash([6 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "alphabetic";
    const say = (text, x, at, align) => {
      ctx.textAlign = align;
      ctx.lineWidth = 3 * ratio;
      ctx.strokeStyle = theme.paper;
      ctx.strokeText(text, x, at);
      ctx.fillStyle = theme.ink;
      ctx.fillText(text, x, at);
    };
    const top = memory.peakTime === null ? null : chart.valToPos(memory.peak / GIB, "y", true), full = top !== null && top < y; // its label stays clear of that of the peak
    say(`capacity ${(memory.capacity / GIB).toFixed(1)} GiB`, bbox.left + 6 * ratio, y + (full ? 16 : -5) * ratio, "left");
    if (top !== null) {
      const x = chart.valToPos(memory.peakTime, "x", true);
      ctx.fillStyle = theme.ink;
      ctx.beginPath();
      ctx.arc(x, top, 3.5 * ratio, 0, 7);
      ctx.fill();
      const text = `peak ${(memory.peak / GIB).toFixed(1)} GiB at ${timeText(memory.peakTime)}`, wide = ctx.measureText(text).width + 10 * ratio;
      const right = x + wide < bbox.left + bbox.width || x - wide < bbox.left;
      const shift = right ? Math.min(7 * ratio, bbox.left + bbox.width - x - wide + 3 * ratio) : -7 * ratio; // within the chart
      const near = !full && top - y < 24 * ratio; // do not write over the capacity
      say(text, x + shift, near ? top + 18 * ratio : Math.max(top - 5 * ratio, bbox.top + 4 * ratio), right ? "left" : "right");
    }
    ctx.restore();
  }

  // The legend with what each category holds at the cursor, or where the total is highest.
  write(index, left) {
    const memory = this.run.memory[this.number], top = this.sums[this.sums.length - 1];
    const at = index === null || index === undefined || left < 0 ? top.indexOf(Math.max(...top)) : index;
    this.legend.replaceChildren();
    const stamp = document.createElement("span");
    stamp.textContent = left >= 0 && index !== null ? `at ${timeText(this.data[0][at])}:` : "at the highest point:";
    this.legend.append(stamp);
    this.names.forEach((name, i) => {
      const style = this.styles.categories[name] || { colour: "#8a929c", label: name };
      const item = document.createElement("span"), swatch = document.createElement("i"), value = document.createElement("output");
      swatch.className = "swatch";
      swatch.style.background = style.colour;
      value.textContent = ` ${((memory.levels[i][Math.min(at, memory.times.length - 1)] || 0) / GIB).toFixed(2)} GiB`;
      item.append(swatch, style.label, value);
      this.legend.append(item);
    });
  }
}
