// Decode, build, draw; follow the theme; make paper out of the screen.

function themed(draw) {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; draw(); });
  dark.addEventListener("change", draw);
  let before = null, closed = [];
  addEventListener("beforeprint", () => {
    before = root.dataset.theme || "";
    root.dataset.theme = "light";
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const part of closed) part.open = true;
    draw();
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    for (const part of closed) part.open = false;
    draw();
  });
}

// A link into a part that is folded opens it.
function openTargets() {
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = target && target.closest("details");
    if (part && !part.open) { part.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", open);
  open();
}

async function start() {
  const root = document.documentElement;
  root.classList.add("scripted");
  makeTables();
  const data = JSON.parse(document.getElementById("data").textContent);
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot decompress the data of the timeline");
  const facts = JSON.parse(new TextDecoder().decode(await inflate(data.facts)));
  const runs = await Promise.all(data.columns.map(async (packed, i) => buildRun(facts.runs[i], await unpack(packed), i)));
  const view = new View(Math.max(...runs.map((run) => run.length)));
  const timeline = new Timeline(document.getElementById("timeline"), runs, view, facts.styles);
  const box = document.getElementById("memory"), charts = [];
  if (box) for (const run of runs) if (run.memory.length) charts.push(new MemoryChart(box, run, view, facts.styles, runs));
  timeline.memory = charts;
  timeline.open();
  const draw = () => {
    const theme = readTheme();
    timeline.draw(theme);
    for (const chart of charts) chart.draw(theme);
    view.draw();
  };
  themed(draw);
  openTargets();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  requestAnimationFrame(() => requestAnimationFrame(() => { root.dataset.ready = String(Math.round(performance.now())); }));
}

start().catch((error) => {
  const words = document.createElement("p");
  words.className = "warning";
  words.textContent = `The timeline cannot be shown: ${error.message}. Everything else on this page is here.`;
  document.getElementById("timeline-section").prepend(words);
  document.documentElement.dataset.ready = "failed";
});
