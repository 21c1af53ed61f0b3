// The state, its address, questions to the server. Of several answers on their way the newest state's counts.

let state = {}, number = 0, answer = null, pins = [], running = null, finding = null, source = { yaml: null, command: null };
const tab = crypto.randomUUID();
const currentState = () => state;
let token = document.querySelector("meta[name=token]").content;
if (token) { kept.set("parsim-token", token); history.replaceState(null, "", location.pathname + location.hash); } else token = kept.get("parsim-token") ?? "";

class Locked extends Error {}

async function ask(path, body, signal) {
  const reply = await fetch(`/api/${path}`, { method: "POST", signal, headers: { "content-type": "application/json", "x-parsim-token": token }, body: JSON.stringify(body) });
  if (reply.status === 401) throw new Locked();
  if (!reply.ok) throw new Error(`${reply.status} ${await reply.text()}`);
  return reply;
}

async function* lines(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

function notice(name, more = "") {
  $("notice").hidden = !name;
  $("notice").textContent = name ? text("text", name) + more : "";
  $("notice").dataset.name = name;
}

function failed(error) {
  if (error.name === "AbortError") return;
  document.body.classList.remove("computing");
  if (error instanceof Locked) notice("locked");
  else if (error instanceof TypeError) { notice("offline"); setTimeout(() => ask("form", {}).then(() => { notice(""); update(); }, failed), 2000); }
  else say(error.message);
}

const say = (words) => { $("message").textContent = words; };
const lost = (one) => say(text("text", one.reason === "time" ? "worker_time" : "worker_gone"));
const wait = (time) => new Promise((resolve) => setTimeout(resolve, time));

// -- a change -------------------------------------------------------------------------------------------------------

function laid(before, changes) {
  const after = { ...before };
  for (const [key, value] of Object.entries(changes)) {
    if (same(value, form.example.state[key] ?? null)) delete after[key];
    else after[key] = value;
  }
  return after;
}
const change = (changes) => { state = laid(state, changes); say(""); update(); };
const become = (whole) => { state = laid({}, whole); say(""); update(); };

async function update() {
  const mine = ++number, asked = { tab, number: mine, state };
  running?.abort();
  running = new AbortController();
  const late = setTimeout(() => { if (mine === number) document.body.classList.add("computing"); }, 150);
  document.body.dataset.settled = "";
  showState(state);
  address();
  try {
    const bound = await (await ask("live", asked)).json();
    clearTimeout(late);
    if (mine !== number || bound.stale) return;
    if (bound.kind === "lost") { document.body.classList.remove("computing"); lost(bound); return; }
    hear(bound.kind === "error" ? { ...form.nothing, stage: "bound", says: "impossible", findings: bound.findings } : bound);
    const choices = await (await ask("choices", asked)).json();
    if (mine !== number || choices.stale) return;
    if (choices.options) {
      showOptions(choices.options, change);
      const ways = choices.repairs.map((changes) => ({ changes }));
      if (ways.length === 0 && answer.says === "impossible") ways.push({ changes: back(), whole: true });
      showWays($("findings"), "repairs", ways, change);
      source = choices;
      showSource();
    }
    if (answer.says !== "impossible") await simulate(asked, mine);
    if (mine === number) document.body.dataset.settled = mine;
    return;
  } catch (error) { clearTimeout(late); failed(error); }
}
const back = () => Object.fromEntries(Object.keys(state).map((key) => [key, form.example.state[key] ?? null]));

async function simulate(asked, mine) {
  await wait(350);
  if (mine !== number) return;
  const near = [];
  for await (const one of lines(await ask("exact", asked, running.signal))) {
    if (mine !== number) return;
    if (one.kind === "answer") hear(one.answer);
    else if (one.kind === "lost") lost(one);
    else if (one.kind === "error") say(one.findings.map((finding) => finding.message).join("; "));
    else if (one.kind === "fits") { near.push({ changes: one.changes, note: ` (${text("figure", "simulated", { value: seconds(one.step_time_s) })})` }); showWays($("findings"), "nearest", near, change); }
  }
}

function hear(one) {
  answer = one;
  showAnswer(one);
  for (const pin of pins) if (same(pin.state, state)) pin.answer = one;
  showPins();
}

// -- the address ----------------------------------------------------------------------------------------------------

const LONGEST = 8000;
async function linked() {
  const document = { s: state, ...(pins.length ? { p: pins.map((pin) => pin.state) } : {}) };
  return Object.keys(state).length || pins.length ? `#c=${form.catalogue}&s=${await packed(document)}` : "";
}
async function address() {
  const mine = number, hash = await linked();
  if (mine === number && hash.length <= LONGEST) history.replaceState(null, "", location.pathname + hash);
}
async function arrive() {
  state = {}; pins = [];
  notice("");
  const said = new URLSearchParams(location.hash.slice(1));
  if (!said.has("s")) return;
  try {
    const document = await unpacked(said.get("s"));
    state = laid({}, document.s);
    pins = (document.p ?? []).slice(0, 12).map((one) => ({ state: laid({}, one), answer: null }));
    if (said.get("c") !== form.catalogue) notice("another_catalogue");
  } catch { notice("bad_link"); }
}

// -- pins -----------------------------------------------------------------------------------------------------------

function pin() {
  if (answer === null || answer.says === "impossible" || pins.some((one) => same(one.state, state))) return;
  pins.push({ state, answer });
  say("");
  showPins();
  $("pins").scrollIntoView({ block: "nearest" });
  address();
}

function showPins() {
  $("pins").hidden = pins.length === 0;
  const head = element("tr", {}, ...["plan", "fits", "peak", "step", "mfu", "tokens"].map((name) => element("th", { class: name === "plan" ? "word" : null }, text(name === "plan" ? "text" : "figure", name))), element("th"));
  const rows = pins.map((one) => element("tr", {},
    element("td", { class: "word", title: described(one.state) || null }, element("span", { class: "short" }, Object.keys(one.state).length ? described(one.state) : text("text", "reset"))),
    element("td", {}, one.answer ? `${verdictOf(one.answer).mark} ${text("stage", one.answer.stage).split(/[;,，]/)[0]}` : "…"),
    ...(one.answer ? [`${gib(one.answer.peak_bytes)} GiB`, ...speedOf(one.answer)] : ["–", "–", "–", "–"]).map((word) => element("td", {}, word)),
    element("td", {}, element("button", { type: "button", onclick: () => become(one.state) }, text("text", "open")), " ",
      element("button", { type: "button", onclick: () => { pins = pins.filter((other) => other !== one); showPins(); address(); } }, text("text", "remove")))));
  $("pinned").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

// The estimate where there is one.
function speedOf(answer) {
  const one = answer.estimate ?? answer;
  return [seconds(one.step_time_s), percent(one.mfu), one.tokens_per_s === null ? "–" : digits(one.tokens_per_s, 0)];
}

let asked = 0;
async function answerPins() {
  for (const one of pins.filter((other) => other.answer === null)) {
    const bound = await (await ask("live", { tab: `${tab}-pins`, number: ++asked, state: one.state })).json();
    if (bound.stage && one.answer === null) one.answer = bound;
  }
  showPins();
}

// -- the best strategy, the report, files ---------------------------------------------------------------------------

async function best() {
  finding?.abort();
  finding = new AbortController();
  const mine = finding, found = [];
  say("");
  $("search").hidden = false;
  $("stop").hidden = false;
  $("progress").textContent = text("text", "searching");
  $("found").replaceChildren();
  $("search").scrollIntoView({ block: "nearest" });
  const heads = [text("text", "plan"), text("figure", "simulated_step"), text("figure", "mfu"), ""];
  const head = element("thead", {}, element("tr", {}, ...heads.map((words, place) => element("th", { class: place ? null : "word" }, words))));
  const show = () => $("found").replaceChildren(head, element("tbody", {}, ...found.toReversed().map((one) => element("tr", {}, element("td", { class: "word" }, one.strategy), element("td", {}, seconds(one.step_time_s)),
    element("td", {}, percent(one.mfu)), element("td", {}, element("button", { type: "button", onclick: () => become(one.state) }, text("text", "open")))))));
  try {
    const reply = await ask("search", { state }, mine.signal);
    for await (const one of lines(reply)) {
      if (one.kind === "progress") $("progress").textContent = `${one.doing}: ${one.done}${one.of ? ` / ${one.of}` : ""}`;
      else if (one.kind === "better") { found.push(one); show(); }
      else if (one.kind === "end") $("progress").textContent = found.length ? `${text("text", "proved")} (${one.simulated} / ${one.points})` : text("text", "nothing_fits");
      else if (one.kind === "busy") $("progress").textContent = text("text", "busy");
      else if (one.kind === "lost") $("progress").textContent = text("text", "worker_gone");
      else if (one.kind === "error") $("progress").textContent = one.findings.map((each) => each.message).join("; ");
    }
  } catch (error) {
    if (error.name === "AbortError") { if (mine === finding) $("progress").textContent = text("text", "stopped"); } else failed(error);
  }
  if (mine === finding) $("stop").hidden = true;
}

async function report() {
  try {
    const { path } = await (await ask("report", { state })).json();
    window.open(path, "_blank", "noopener");
  } catch (error) { failed(error); }
}

async function read(file) {
  try {
    const words = await file.text();
    if (words.length > 200_000) { say(`${file.name}: ${words.length} > 200,000`); return; }
    const found = await (await ask("drop", { name: file.name.slice(0, 200), text: words })).json();
    if (!found.state) { say(found.findings?.map((one) => `${one.path ?? ""} ${one.message}${one.suggestion ? `; ${one.suggestion}` : ""}`).join("\n") ?? text("text", "worker_gone")); return; }
    if (Object.keys(found.state).length === 1) change(found.state); else become(found.state);
    say([text("text", "remarks"), file.name, ...found.remarks].join(" · "));
  } catch (error) { failed(error); }
}

function showSource() {
  $("yaml").textContent = source.yaml ?? "";
  $("line").textContent = source.command ?? text("text", "no_command");
}

async function copied(words) {
  try { await navigator.clipboard.writeText(words); say(text("text", "copied")); } catch { say(words); }
}

async function share() {
  const hash = await linked();
  if (hash.length > LONGEST) say(text("text", "too_long")); else await copied(location.origin + location.pathname + hash);
}

function save() {
  const link = element("a", { download: "scenario.yaml", href: `data:text/yaml;charset=utf-8,${encodeURIComponent(source.yaml ?? "")}` });
  link.click();
}

// -- hands ----------------------------------------------------------------------------------------------------------

const DO = { p: pin, b: best, r: report, "?": () => say(text("text", "keys")) };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=radio]), select, textarea")) return;
  if (event.key in DO) { event.preventDefault(); DO[event.key](); }
});
for (const [id, act] of Object.entries({ pin, best, report, link: share, save, help: DO["?"], command: () => copied(source.command ?? text("text", "no_command")),
  stop: () => finding?.abort(), example: () => become({}), file: () => $("chosen").click(), theme, language: () => speak(language === "en" ? "zh" : "en") })) $(id).addEventListener("click", act);
$("form").addEventListener("submit", (event) => event.preventDefault());
$("chosen").addEventListener("change", () => { if ($("chosen").files[0]) read($("chosen").files[0]); $("chosen").value = ""; });
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => { event.preventDefault(); document.body.classList.remove("dropping"); if (event.dataTransfer.files[0]) read(event.dataTransfer.files[0]); });
window.addEventListener("hashchange", () => arrive().then(() => { update(); answerPins().catch(failed); }));

function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  kept.set("parsim-theme", document.documentElement.dataset.theme);
}

function speak(other) {
  language = other;
  kept.set("parsim-language", other);
  showTexts();
  if (form === null) return;
  buildForm(change);
  say(text("text", "intro"));
  update();
}

async function begin() {
  if (kept.get("parsim-theme")) document.documentElement.dataset.theme = kept.get("parsim-theme");
  showTexts();
  $("words").textContent = text("says", "wait");
  try {
    form = await (await ask("form", {})).json();
    if (form.kind) throw new Error(JSON.stringify(form.findings ?? form.reason));
    buildForm(change);
    await arrive();
    say(text("text", "intro"));
    update();
    if (pins.length) await answerPins();
  } catch (error) { if (form === null && error instanceof TypeError) notice("offline"); else failed(error); }
}
begin();
