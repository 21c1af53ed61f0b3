// The runs of a page: spans in rows, passes (slots) of compute rows, memory over time. Times are seconds from the start of the step.

function buildRun(facts, columns, number) {
  const tick = 1 / facts.ticks_per_second;
  const whats = facts.whats.map((row) => Object.fromEntries(facts.fields.map((field, i) => [field, row[i]])));
  const count = columns.gap.length;
  const run = {
    number, whats, name: facts.name, length: facts.length * tick, ranks: facts.ranks, rows: [],
    marks: (facts.marks || []).map(([at, text]) => [at * tick, text]),
    periods: (facts.periods || []).map(([at, length, count]) => ({ begin: at * tick, length: length * tick, count })),
    what: columns.what, instance: columns.instance, share: columns.share,
    start: new Float64Array(count), end: new Float64Array(count), busy: new Uint8Array(count), cause: new Int32Array(count),
    bareStart: new Float64Array(columns.bare_gap.length), bareEnd: new Float64Array(columns.bare_gap.length),
    critical: new Int32Array(columns.critical.length), effects: null,
  };
  for (let i = 0; i < count; i++) {
    run.cause[i] = columns.cause[i] === 0 ? -1 : i - columns.cause[i];
    run.busy[i] = 255 - columns.busy[i];
  }
  for (let i = 0, at = 0; i < run.critical.length; i++) run.critical[i] = at += columns.critical[i];
  for (const [rank, kind, first, spans, bareFirst, bareCount] of facts.rows) {
    for (let i = first, at = 0; i < first + spans; i++) {
      at += columns.gap[i];
      run.start[i] = at * tick;
      at += columns.length[i] + whats[columns.what[i]].nominal;
      run.end[i] = at * tick;
    }
    for (let i = bareFirst, at = 0; i < bareFirst + bareCount; i++) {
      run.bareStart[i] = (at += columns.bare_gap[i]) * tick;
      run.bareEnd[i] = (at += columns.bare_length[i]) * tick;
    }
    run.rows.push({ run, rank, kind, first, last: first + spans, bareFirst, bareLast: bareFirst + bareCount, slots: null, place: run.rows.length });
  }
  run.rowOf = new Int32Array(count);
  for (const row of run.rows) run.rowOf.fill(row.place, row.first, row.last);
  for (const row of run.rows) {
    if (row.kind !== "compute") continue;
    row.passes = slotsOf(run, row);
    // slots are painted only where they say more than their spans
    row.slots = row.passes.some((slot) => slot.letter && slot.last - slot.first > 1) ? row.passes : null;
  }
  run.memory = facts.memory.map((table, i) => buildMemory(table, columns, i, tick, run));
  return run;
}

// Passes of a compute row: neighbouring spans of one slot and micro-batch; a span outside of passes stands alone.
function slotsOf(run, row) {
  const slots = [];
  for (let i = row.first; i < row.last; ) {
    const what = run.whats[run.what[i]];
    let next = i + 1;
    if (what.slot) while (next < row.last && run.instance[next] === run.instance[i] && run.whats[run.what[next]].slot === what.slot) next++;
    let work = 0, again = 0, longest = 0, role = what.role;
    for (let j = i; j < next; j++) {
      const own = run.whats[run.what[j]], spent = ((run.end[j] - run.start[j]) * run.busy[j]) / 255;
      work += spent;
      again += own.merged ? own.again * spent : own.role === "recompute" ? spent : 0;
      if (own.role !== "recompute" && spent > longest) { longest = spent; role = own.role; }
    }
    const start = run.start[i], end = run.end[next - 1];
    slots.push({ first: i, last: next, start, end, role, letter: what.slot.slice(0, 1), instance: run.instance[i] - 1, busy: work / (end - start), again: work ? again / work : 0 });
    i = next;
  }
  return slots;
}

function buildMemory(table, columns, number, tick, run) {
  const levels = table.categories.map((name) => {
    const steps = columns[`memory ${number} ${name}`], values = new Float64Array(steps.length);
    for (let i = 0, at = 0; i < steps.length; i++) values[i] = (at += steps[i]) * table.quantum;
    return values;
  });
  const steps = columns[`memory ${number} time`], times = new Float64Array(steps.length);
  for (let i = 0, at = 0; i < steps.length; i++) times[i] = (at += steps[i]) * tick;
  return { ...table, times, levels, run, peakTime: table.peak_tick === null ? null : table.peak_tick * tick };
}

// The first span of a row that ends after `time`: spans of a row never overlap, so ends ascend like starts.
function firstEndingAfter(ends, low, high, time) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

function chainOf(run, span) {
  const chain = [];
  const seen = new Set();
  for (let i = span; i >= 0 && !seen.has(i); i = run.cause[i]) { chain.push(i); seen.add(i); }
  return chain.reverse();
}

// Spans that waited for this one; the index of all is made when it is first asked for.
function effectsOf(run, span) {
  if (!run.effects) {
    run.effects = new Map();
    run.cause.forEach((cause, i) => {
      if (cause < 0) return;
      if (run.effects.has(cause)) run.effects.get(cause).push(i); else run.effects.set(cause, [i]);
    });
  }
  return run.effects.get(span) || [];
}

// Numbers as people read them.

function unitOf(span) {
  return span >= 2 ? [1, "s"] : span >= 2e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
}

function timeText(seconds) {
  const [factor, name] = unitOf(Math.abs(seconds));
  const value = seconds / factor;
  return `${Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(4).replace(/\.?0+$/, "")} ${name}`;
}

function scaled(value, prefixes, base) {
  let i = 0;
  while (value >= base && i < prefixes.length - 1) { value /= base; i++; }
  return `${i && value < 100 ? value.toPrecision(3) : Math.round(value)} ${prefixes[i]}`;
}

const bytesText = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const flopText = (value) => scaled(value, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"], 1000);

function placeText(run, span) {
  const row = run.rows[run.rowOf[span]], rank = run.ranks[row.rank];
  return `${rank.label}, ${row.kind.replace("_comm", " communication")}`;
}

function spanText(run, span) {
  const what = run.whats[run.what[span]];
  const name = what.merged ? `${what.name} (${what.merged} ops)` : what.name;
  return run.instance[span] ? `${name} · micro-batch ${run.instance[span] - 1}` : name;
}

// Four lines about a span, or about the pass that a slot is: what and where, when, how much, why not earlier.
function describe(run, span, slot) {
  const start = slot ? slot.start : run.start[span], end = slot ? slot.end : run.end[span];
  const row = run.rows[run.rowOf[span]], rank = run.ranks[row.rank], first = slot ? slot.first : span;
  const word = slot && { F: "forward", B: "backward", W: "weight gradient" }[slot.letter];
  const title = slot ? `${word} ${run.whats[run.what[first]].slot} · micro-batch ${slot.instance} (${slot.last - slot.first} ops)` : spanText(run, span);
  const share = (100 * (end - start)) / run.length, cause = run.cause[first];
  const where = rank.label.startsWith("rank") && rank.count === 1 ? "" : ` (${rank.ranks})`;
  return `${title} · ${placeText(run, span)}${where}\n`
    + `starts ${timeText(start)}, takes ${timeText(end - start)} (${share < 0.1 ? share.toPrecision(2) : share.toFixed(1)} % of the step)`
    + workText(run, span, slot, end - start)
    + (cause < 0 ? "\nwaits for nothing" : `\nwaited for ${spanText(run, cause)} on ${placeText(run, cause)}`);
}

function workText(run, span, slot, seconds) {
  const what = run.whats[run.what[span]];
  let flop = 0, moved = 0;
  for (let i = slot ? slot.first : span; i < (slot ? slot.last : span + 1); i++) {
    flop += run.whats[run.what[i]].flop || 0;
    moved += run.whats[run.what[i]].moved || 0;
  }
  const parts = [];
  if (flop) parts.push(`${flopText(flop)} (${flopText(flop / seconds)}/s)`);
  if (moved) parts.push(`${bytesText(moved)} to and from device memory`);
  if (what.bytes && !slot) {
    const share = run.share[span];
    const seen = share === 255 ? "exposed" : share === 0 ? "hidden" : `${Math.round(share / 2.55)} % exposed`;
    parts.push(`${what.transfer ? `${what.transfer} of ` : ""}${bytesText(what.bytes)}${what.members > 1 ? ` among ${what.members} GPUs` : ""}, ${seen}`);
  }
  if (slot && slot.busy < 0.995) parts.push(`computes ${Math.round(100 * slot.busy)} % of it`);
  return parts.length ? `\n${parts.join(" · ")}` : "";
}
