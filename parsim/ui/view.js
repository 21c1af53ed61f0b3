// What is shown: the form, and an answer. Every number of the answer comes from one document.

let form = null;

const controls = () => [...form.groups, ...form.advanced].flatMap((group) => group.controls);
const valueOf = (state, key) => key in state ? state[key] : key in form.example.state ? form.example.state[key] : null;

function buildForm(change) {
  const group = (name, title, listed) => element("fieldset", { "data-group": name }, element("legend", {}, title), ...listed.map((one) => field(one, change)));
  $("form").replaceChildren(...form.groups.map((one) => group(one.name, text("group", one.name), one.controls)));
  $("rest").replaceChildren(...form.advanced.map((one) => group(one.name, one.name, one.controls)));
}

function field(control, change) {
  const id = `field-${control.key}`;
  const about = control.about || null;
  const name = element("label", { class: "name", for: id, title: about, id: `${id}-name` }, boot.texts.label[control.key]?.[language] ?? control.key);
  const row = element("div", { class: "field", "data-key": control.key, "data-entered": control.entered }, name);
  if (control.entered === "choice") {
    name.removeAttribute("for");
    row.append(element("div", { class: "values", role: "radiogroup", "aria-labelledby": `${id}-name`, id }));
  } else if (control.entered === "list") {
    const select = element("select", { id, onchange: () => change({ [control.key]: select.value === "" ? null : JSON.parse(select.value) }) });
    if (!form.required.includes(control.key)) select.append(element("option", { value: "" }, defaultWord(control)));
    for (const value of control.values) select.append(element("option", { value: JSON.stringify(value) }, worded(value)));
    row.append(select);
  } else {
    const input = element("input", { id, type: "text", inputmode: control.entered === "number" ? "numeric" : null, spellcheck: "false",
      placeholder: control.default === null || control.default === undefined ? control.example : unparsed(control.default),
      onchange: () => change({ [control.key]: parsed(input.value) }) });
    row.append(input);
  }
  if (boot.texts.hint[control.key]) row.append(element("p", { class: "hint" }, text("hint", control.key)));
  row.append(element("p", { class: "reason", hidden: true }));
  return row;
}

const defaultWord = (control) => control.default === null || control.default === undefined ? `(${text("text", "default")})` : `(${worded(control.default)})`;
const rowOf = (key) => document.querySelector(`.field[data-key="${CSS.escape(key)}"]`);

function showState(state) {
  for (const control of controls()) {
    const row = rowOf(control.key), value = valueOf(state, control.key);
    row.classList.toggle("changed", control.key in state);
    if (control.entered === "list") {
      const select = row.querySelector("select"), wanted = value === null ? "" : JSON.stringify(value);
      let option = [...select.options].find((one) => one.value === wanted);
      if (!option) {
        option = element("option", { value: wanted, "data-own": true }, typeof value === "object" ? text("text", "from_file") : worded(value));
        select.append(option);
      }
      for (const own of select.querySelectorAll("[data-own]")) if (own !== option) own.remove();
      select.value = wanted;
    } else if (control.entered !== "choice") {
      const input = row.querySelector("input");
      if (document.activeElement !== input) input.value = unparsed(value);
    }
  }
}

function showOptions(options, change) {
  for (const control of controls().filter((one) => one.entered === "choice")) {
    const row = rowOf(control.key), listed = options[control.key];
    row.hidden = !listed;
    if (!listed) continue;
    const box = row.querySelector(".values"), focused = box.contains(document.activeElement) ? document.activeElement.getAttribute("data-value") : null;
    const reason = row.querySelector(".reason");
    reason.hidden = true;
    const why = (one) => () => { reason.textContent = `${worded(one.value)}: ${one.reason}`; reason.hidden = false; };
    if (listed.length > 9) {
      const select = element("select", { "aria-labelledby": `field-${control.key}-name`, "data-value": "select", onchange: () => change(listed[select.selectedIndex].changes) },
        ...listed.map((one) => element("option", { disabled: Boolean(one.reason) && !one.chosen, title: one.reason || null }, worded(one.value))));
      select.selectedIndex = listed.findIndex((one) => one.chosen);
      box.removeAttribute("role");
      box.replaceChildren(select);
    } else {
      box.setAttribute("role", "radiogroup");
      box.replaceChildren(...listed.map((one) => element("label", { title: one.reason || null, onclick: one.reason && !one.chosen ? why(one) : () => {} },
        element("input", { type: "radio", name: `choice-${control.key}`, "data-value": JSON.stringify(one.value), disabled: Boolean(one.reason) && !one.chosen,
          onchange: () => change(one.changes) }),
        element("span", {}, worded(one.value)))));
      const chosen = listed.findIndex((one) => one.chosen);
      if (chosen >= 0) box.querySelectorAll("input")[chosen].checked = true;
    }
    if (focused !== null) (box.querySelector(`[data-value=${CSS.escape(focused)}]`) ?? box.querySelector("input:checked, select"))?.focus({ preventScroll: true });
  }
}

const WORDS = {
  "bound/impossible": ["impossible", "impossible", "✗"], "bound/does not fit": ["bound_no", "fails", "✗"], "bound/at least": ["bound_least", "bound", "…"],
  "provisional/close": ["close", "close", "≈"], "provisional/fits": ["short_fits", "fits", "✓"], "provisional/does not fit": ["short_no", "fails", "✗"],
  "simulated/fits": ["fits", "fits", "✓"], "simulated/does not fit": ["no", "fails", "✗"],
};

function verdictOf(answer) {
  const [name, kind, mark] = WORDS[`${answer.stage}/${answer.says}`];
  const size = { peak: gib(answer.peak_bytes ?? 0), capacity: gib(answer.capacity_bytes ?? 0) };
  return { words: text("says", answer.tight ? "tight" : name, size), kind, mark };
}

function showAnswer(answer) {
  document.body.classList.remove("computing");
  document.body.dataset.stage = answer.stage;
  document.body.dataset.says = answer.says;
  const { words, kind, mark } = verdictOf(answer);
  if ($("words").textContent !== words) $("words").textContent = words;
  $("words").dataset.mark = mark;
  $("verdict").className = `verdict ${kind}`;
  const sure = answer.confidence;
  $("sure").hidden = answer.says === "impossible";
  $("badge").hidden = !sure;
  $("badge").className = `badge ${sure ?? ""}`;
  $("badge").textContent = sure ? text("sure", sure) : "";
  $("badge").title = answer.basis ?? "";
  $("why").textContent = sure ? `${text("why", sure)} ·` : "";
  $("stage").textContent = text("stage", answer.stage);
  $("findings").replaceChildren(...answer.findings.map((one) => element("p", {}, one.path ? element("b", {}, `${label(one.path)}: `) : null, one.message,
    one.suggestion ? `; ${one.suggestion}` : "")));
  showMemory(answer);
  showFigures(answer);
  $("limiter").textContent = answer.stage === "simulated" ? [answer.limiter, ...answer.warnings.slice(0, 3)].filter(Boolean).join(" · ") : "";
}

function showMemory(answer) {
  const bar = $("memory"), whole = 1.04 * Math.max(answer.capacity_bytes ?? 0, answer.peak_bytes ?? 0);
  if (!whole) { bar.replaceChildren(); $("legend").replaceChildren(); bar.setAttribute("aria-label", ""); return; }
  const part = (size, attributes, colour) => {
    const made = element("i", attributes);
    made.style.width = `${100 * size / whole}%`;
    if (colour) made.style.background = colour;
    return made;
  };
  const limit = element("i", { class: "limit", title: `${text("text", "limit")} ${gib(answer.capacity_bytes)} GiB` });
  limit.style.left = `${100 * answer.capacity_bytes / whole}%`;
  if (answer.at_peak === null) {
    bar.replaceChildren(part(answer.peak_bytes, { class: "hollow" }), limit);
    $("legend").replaceChildren(element("span", {}, `${text("text", "at_least")} ${gib(answer.peak_bytes)} GiB`));
  } else {
    const parts = form.memory.filter((one) => answer.at_peak[one.name] > 0);
    bar.replaceChildren(...parts.map((one) => part(answer.at_peak[one.name], { title: `${text("memory", one.name)} ${gib(answer.at_peak[one.name])} GiB` }, one.colour)), limit);
    $("legend").replaceChildren(...parts.map((one) => {
      const swatch = element("i", { class: "swatch" });
      swatch.style.background = one.colour;
      return element("span", {}, swatch, `${text("memory", one.name)} ${gib(answer.at_peak[one.name])}`);
    }));
  }
  bar.setAttribute("aria-label", [`${text("text", "memory")}: ${gib(answer.peak_bytes)} / ${gib(answer.capacity_bytes)} GiB`,
    ...[...$("legend").children].map((one) => one.textContent)].join(", "));
}

function showFigures(answer) {
  const bound = answer.stage === "bound", no = answer.says === "does not fit";
  const figure = (name, value, note = "", supposed = false) => element("div", { "data-figure": name, class: supposed ? "supposed" : null },
    element("dt", {}, text("figure", name)), element("dd", {}, value, element("small", {}, note)));
  const least = (value, word) => value === "–" ? value : bound ? `${word} ${value}` : value;
  const supposed = no ? text("text", "unless_memory") : "", estimate = answer.estimate, band = estimate?.step_time_band_s;
  const asked = valueOf(currentState(), form.length) !== null;
  // an estimate with what was simulated below it; what is simulated where there is no estimate yet, or it is the same
  const estimated = (name, shown, word) => {
    const simulated = shown(answer[name]), value = estimate ? shown(estimate[name]) : least(simulated, word);
    const below = estimate?.of === "bands" && !no ? text("figure", "simulated", { value: simulated }) : "";
    const range = name === "step_time_s" && band ? text("figure", "range", { low: seconds(band[0]), high: seconds(band[1]) }) : "";
    return [value, [supposed, range, below].filter(Boolean).join("; "), no];
  };
  const whole = estimate?.time_to_train_s ?? null, cost = estimate?.cost_to_train ?? null;
  $("figures").replaceChildren(
    figure("step", ...estimated("step_time_s", seconds, "≥")),
    figure("tokens", ...estimated("tokens_per_s", (value) => value === null ? "–" : digits(value, 0), "≤")),
    figure("mfu", ...estimated("mfu", percent, "≤")),
    figure("gpus", answer.gpus === null ? "–" : String(answer.gpus)),
    figure("days", whole === null ? "–" : long(whole), asked ? "" : text("figure", "needs_tokens")),
    figure("cost", cost === null ? "–" : `${digits(cost, 0)} ${answer.currency ?? ""}`, asked && answer.stage === "simulated" && cost === null ? text("figure", "needs_price") : ""),
  );
}

function showWays(where, title, ways, change) {
  const old = where.querySelector(`[data-ways="${title}"]`);
  old?.remove();
  if (ways.length === 0) return;
  where.append(element("div", { "data-ways": title }, element("p", {}, text("text", title)),
    ...ways.map((way) => element("button", { type: "button", onclick: () => change(way.changes) }, (way.whole ? text("text", "reset") : described(way.changes)) + (way.note ?? "")))));
}

function showTexts() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const one of document.querySelectorAll("[data-text]")) one.textContent = text("text", one.dataset.text);
  for (const one of document.querySelectorAll("[data-label]")) one.setAttribute("aria-label", text("text", one.dataset.label));
  document.title = `parsim · ${text("text", "title")}`;
}
