"use strict";
// Texts, numbers as people read them, elements.

const boot = JSON.parse(document.getElementById("boot").textContent);
const $ = (id) => document.getElementById(id);
const kept = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
  set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* a private window */ } } };
let language = kept.get("parsim-language") || (navigator.language.startsWith("zh") ? "zh" : "en");
if (!(language in boot.languages)) language = "en";

function text(section, name, values = {}) {
  const one = boot.texts[section]?.[name]?.[language];
  return one === undefined ? name : one.replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const digits = (value, most) => value.toLocaleString("en-US", { maximumFractionDigits: most, minimumFractionDigits: most });
const rounded = (value) => value >= 100 ? digits(value, 0) : value >= 10 ? digits(value, 1) : digits(value, 2);
const gib = (bytes) => { const amount = bytes / 2 ** 30; return digits(amount, amount >= 9.995 ? 1 : 2); };
const seconds = (value) => value === null ? "–" : value >= 1 ? `${rounded(value)} s` : value >= 1e-3 ? `${rounded(value * 1e3)} ms` : `${rounded(value * 1e6)} µs`;
const percent = (value) => value === null ? "–" : `${digits(100 * value, 1)} %`;
const long = (value) => value === null ? "–" : value >= 2 * 86400 ? `${rounded(value / 86400)} ${text("figure", "day")}` : `${rounded(value / 3600)} ${text("figure", "hour")}`;

function worded(value) {
  if (value === true) return text("text", "on");
  if (value === false) return text("text", "off");
  if (value === null || value === undefined) return text("text", "default");
  if (Number.isInteger(value.blocks)) return text("text", value.blocks === 1 ? "one_block" : "blocks", { count: value.blocks });
  return typeof value === "object" ? JSON.stringify(value).replace(/["{}]/g, "").replaceAll(":", " ") : String(value);
}
// A key in words; those without a label by the last part of their name.
const label = (key) => boot.texts.label[key]?.[language] ?? sentence(key.split(".").slice(key.includes(".") ? 1 : 0).join(" ").replaceAll("_", " "));
const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);
// Changes in words: what takes model parallelism away is said at once.
function described(changes) {
  const plain = changes["parallel.tensor.size"] === null && changes["parallel.pipeline.size"] === null;
  const rest = Object.entries(changes).filter(([key, value]) => !(plain && value === null && key.startsWith("parallel.")));
  const words = rest.map(([key, value]) => (value === null ? `${label(key)}: ${text("text", "default")}` : `${label(key)} ${worded(value)}`));
  return [...(plain ? [text("text", "data_only")] : []), ...words].join(", ");
}
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// A field's text as YAML would read the plain values; what is no JSON is a text, such as 1T.
function parsed(written) {
  const trimmed = written.trim();
  if (trimmed === "") return null;
  try { return JSON.parse(trimmed); } catch { return trimmed; }
}
const unparsed = (value) => value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);

// States in the address: deflated where that is shorter.
const base64 = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
const bytesOf = (word) => Uint8Array.from(atob(word.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
async function through(stream, bytes) {
  const piped = new Blob([bytes]).stream().pipeThrough(stream);
  const parts = [];
  let size = 0;
  for (const reader = piped.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    if ((size += value.length) > 400_000) throw new Error("large");
    parts.push(value);
  }
}
async function packed(document) {
  const plain = new TextEncoder().encode(JSON.stringify(document));
  const small = await through(new CompressionStream("deflate-raw"), plain);
  return small.length < plain.length ? `z${base64(small)}` : `j${base64(plain)}`;
}
async function unpacked(word) {
  const bytes = bytesOf(word.slice(1));
  return JSON.parse(new TextDecoder().decode(word[0] === "z" ? await through(new DecompressionStream("deflate-raw"), bytes) : bytes));
}
