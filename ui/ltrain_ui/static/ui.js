// Keys: in a list J and K move and Enter opens; on other pages a key clicks its link or button.
function move(by) {
  const items = [...document.querySelectorAll("a.item")];
  const at = items.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : items.length - 1) : at + by;
  items[Math.min(Math.max(next, 0), items.length - 1)].focus();
}

const find = document.querySelector("form[role=search] input");
const keys = document.getElementById("keys");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const key = event.key.toLowerCase();
  if (key === "/" && find) {
    event.preventDefault();
    return find.select();
  }
  const list = document.querySelector("a.item");
  if (list && (key === "j" || key === "k")) move(key === "j" ? 1 : -1);
  else document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.click();
});

const help = document.querySelector(".side .keys");
if (help) {
  help.hidden = false;
  help.addEventListener("click", () => keys.showModal());
}

// Suggestions while somebody types: arrows choose, Enter opens the chosen one, else what the text names.
const list = document.getElementById("suggestions");
let asked = 0, chosen = -1;

function choose(index) {
  chosen = index;
  [...list.children].forEach((item, at) => item.setAttribute("aria-selected", at === chosen));
  find.setAttribute("aria-activedescendant", chosen < 0 ? "" : list.children[chosen].id);
}

function suggest(found) {
  list.replaceChildren(...found.map(({ kind, text, address }, number) => {
    const item = document.createElement("li"), name = document.createElement("span");
    Object.assign(item, { id: `suggestion-${number}` });
    item.setAttribute("role", "option");
    item.dataset.address = address;
    name.textContent = kind;
    item.append(name, text);
    return item;
  }));
  list.hidden = !found.length;
  find.setAttribute("aria-expanded", !list.hidden);
  choose(-1);
}

async function ask() {
  const number = ++asked, text = find.value.trim();
  if (!text) return suggest([]);
  await new Promise((resolve) => setTimeout(resolve, 150));
  if (number !== asked) return;
  try {
    const response = await fetch(`/find/suggestions?${new URLSearchParams({ id: text })}`);
    if (number === asked && response.ok) suggest(await response.json());
  } catch { suggest([]); } // Enter still finds what the text names
}

if (find) {
  find.addEventListener("input", ask);
  find.addEventListener("keydown", (event) => {
    const count = list.hidden ? 0 : list.children.length;
    if (event.key === "Escape") { suggest([]); find.blur(); }
    else if (count && event.key === "ArrowDown") { event.preventDefault(); choose((chosen + 1) % count); }
    else if (count && event.key === "ArrowUp") { event.preventDefault(); choose((chosen + count - (chosen < 0 ? 0 : 1)) % count); }
    else if (count && event.key === "Enter" && chosen >= 0) { event.preventDefault(); location.assign(list.children[chosen].dataset.address); }
  });
  list.addEventListener("mousedown", (event) => {
    const item = event.target.closest("li");
    if (item) { event.preventDefault(); location.assign(item.dataset.address); }
  });
  find.addEventListener("blur", () => suggest([]));
}

// A page that changes is requested again. Elements that stay keep focus, scroll and open state.
const INTERVAL = 3000; // milliseconds
const PAUSE = 40; // A page that took long to make is requested again after this many times as long.
const MAX_PAUSE = 30000; // milliseconds
export const pauseAfter = (took) => Math.min(MAX_PAUSE, Math.max(INTERVAL, PAUSE * took));
const key = (node) => (node.nodeName === "TR" ? node.querySelector("a[href]")?.getAttribute("href") : undefined);

/** Make a node equal to another one of the same name, with as few new nodes as possible. */
function merge(old, next) {
  if (old.isEqualNode(next)) return;
  if (old.nodeName !== next.nodeName) return old.replaceWith(next.cloneNode(true));
  if (!(old instanceof Element)) return (old.data = next.data);
  const own = old.nodeName === "DETAILS" ? ["open"] : [];
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name) && !own.includes(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (!own.includes(name)) old.setAttribute(name, value);
  mergeChildren(old, [...next.childNodes]);
}

/** Rows are matched by their first link: a new row in the middle replaces no other one. */
function mergeChildren(old, nodes) {
  let at = old.firstChild;
  for (const node of nodes) {
    if (at && key(at) !== key(node)) {
      let same = at.nextSibling;
      while (same && key(same) !== key(node)) same = same.nextSibling;
      if (same) while (at !== same) at = removed(at);
      else { old.insertBefore(node.cloneNode(true), at); continue; }
    }
    if (!at) { old.append(node.cloneNode(true)); continue; }
    const following = at.nextSibling;
    merge(at, node);
    at = following;
  }
  while (at) at = removed(at);
}

function removed(node) {
  const following = node.nextSibling;
  node.remove();
  return following;
}

function report(text) {
  const place = document.querySelector("p.live");
  place.textContent = text;
  place.hidden = !text;
}

async function refresh() {
  const main = document.querySelector("main[data-live]");
  if (!main || document.hidden || busy) return;
  busy = true;
  const began = performance.now();
  try {
    const headers = { "If-None-Match": main.dataset.live };
    const response = await fetch(location.href, { headers, cache: "no-store" });
    if (response.status === 200) {
      const next = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
      document.dispatchEvent(new CustomEvent("ltrain:read", { detail: next }));
      merge(main, next);
    }
    if (response.status === 401) return report("This page is not refreshed: sign in again, with the link in the terminal.");
    report(response.status === 200 || response.status === 304 ? "" : "This page is not refreshed: the store is away. Trying again.");
  } catch {
    report("This page is not refreshed: `ltrain ui` does not answer. Trying again.");
  } finally {
    busy = false;
  }
  timer = setTimeout(refresh, pauseAfter(performance.now() - began));
}

let busy = false;
let timer = setTimeout(refresh, INTERVAL);
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) refresh();
});

// A command is copied by the button beside it.
for (const command of document.querySelectorAll("code.command")) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "copy", textContent: "Copy" });
  button.addEventListener("click", () => navigator.clipboard.writeText(command.textContent).then(() => { button.textContent = "Copied"; }));
  command.after(" ", button);
}

// A part of a page that is requested again and again.
async function poll(part) {
  const began = performance.now();
  try {
    const response = document.hidden ? undefined : await fetch(part.dataset.poll, { cache: "no-store" });
    if (response?.ok) {
      const next = new DOMParser().parseFromString(await response.text(), "text/html").body;
      mergeChildren(part, [...next.childNodes]);
    }
  } catch { /* the sentence on the stream says that the server is away */ }
  setTimeout(poll, pauseAfter(performance.now() - began), part);
}
document.querySelectorAll("[data-poll]").forEach(poll);

// Spans as they arrive: each event has new rows, and its id is where the next connection goes on.
const table = document.querySelector("table[data-events]");
let events, last = "", skipped = 0, paused = false;

function row({ key, cells, href, id }) {
  const line = document.createElement("tr");
  line.dataset.key = key;
  const link = document.createElement("a");
  Object.assign(link, { className: "item", href, textContent: id });
  line.insertCell().append(link);
  cells.forEach((text, number) => {
    const cell = line.insertCell();
    cell.textContent = text;
    if (number === 5) cell.className = "right";
    else if (number === 4 && text === "error") cell.className = "bad";
    else if (text.length > 36) cell.className = "sentence";
  });
  return line;
}

function show({ data, lastEventId }) {
  const update = JSON.parse(data);
  const body = table.tBodies[0];
  if (lastEventId) last = lastEventId;
  for (const span of update.spans) {
    if (!body.querySelector(`[data-key="${CSS.escape(span.key)}"]`)) body.prepend(row(span));
  }
  const focused = document.activeElement.closest("tr");
  while (body.rows.length > table.dataset.rows && body.lastElementChild !== focused) body.lastElementChild.remove();
  skipped += update.skipped;
  const sentence = document.getElementById("skipped");
  sentence.hidden = !skipped && !update.lost && sentence.hidden;
  if (update.lost) sentence.textContent = "ltrain ui was started again: spans of the time between may be missing. ";
  else if (update.skipped) sentence.textContent = `${skipped.toLocaleString("en")} spans arrived at once and are not shown: the newest are. Rollouts lists all.`;
  state(update.failure ? `The store is not read: ${update.failure} Trying again.` : body.rows.length ? "Following the store." : "Following the store: no span yet.");
}

function state(text) {
  const place = document.getElementById("state");
  if (place.textContent !== text) place.textContent = text;
}

function connect() {
  events?.close();
  if (document.hidden || paused) return state("Paused.");
  const address = new URL(table.dataset.events, location.href);
  if (last) address.searchParams.set("after", last);
  events = new EventSource(address);
  events.onmessage = show;
  events.onerror = () => state(events.readyState === EventSource.CLOSED
    ? "ltrain ui ended, or this browser is signed out: open the link in its terminal."
    : "`ltrain ui` does not answer. Trying again.");
}

if (table) {
  const button = document.getElementById("pause");
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Continue" : "Pause";
    button.setAttribute("aria-pressed", paused);
    connect();
  });
  document.addEventListener("visibilitychange", connect);
  connect();
}
