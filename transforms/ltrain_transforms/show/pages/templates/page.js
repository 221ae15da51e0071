// Calls of a tree: open, fold and reach them by key or link. Of a large tree only the blocks of rows
// near the screen are in the page; rows and bodies come from the server, or from data in the file.
const NEAR = "600px 0px"; // blocks within this distance of the screen have rows
const PAUSE = 60; // milliseconds that a block stays near before its rows are read
const WIDE = matchMedia("(min-width: 1000px)"); // a wide screen shows the chosen call beside the tree
const openCalls = new Set(); // ids of open calls
const chosen = new Map(); // the id of the chosen call of each attempt, on a wide screen
const lists = new Map(); // the list of each attempt, by its number
let sought; // attempt and call of a link to a call that the tree does not have yet

const sleep = (time) => new Promise((resolve) => setTimeout(resolve, time));
const identifier = (attempt, call) => `a${attempt}c${call}`;

function nodes(html) {
  const template = document.createElement("template");
  template.innerHTML = html; // of the templates, which escape every text of a trace
  return template.content;
}

class ServedCalls {
  constructor(address) { this.address = address; }

  async read(part, values) {
    const address = new URL(this.address.replace("/rows?", `/${part}?`), location);
    for (const [name, value] of Object.entries(values)) address.searchParams.set(name, value);
    const response = await fetch(address);
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    return response.text();
  }

  rows(attempt, at) { return this.read("rows", { attempt, at }); }
  body(attempt, call) { return this.read("body", { attempt, call }); }

  async position(attempt, call) {
    return Number(await this.read("position", { attempt, call }));
  }
}

class StoredCalls {
  read(id) { return JSON.parse(document.getElementById(id).textContent); }

  async rows(attempt, at) { return this.read(`block-${attempt}-${at}`).rows; }

  async position(attempt, call) {
    const order = this.read(`order-${attempt}`);
    return order.length ? order.indexOf(call) : call;
  }

  async body(attempt, call, block) {
    const at = await this.position(attempt, call);
    const start = at - (at % block);
    return this.read(`block-${attempt}-${start}`).bodies[at - start];
  }
}

class Calls {
  constructor(list) {
    this.list = list;
    const { attempt, total, block, rows } = list.dataset;
    this.isWhole = total === undefined;
    this.attempt = Number(attempt);
    this.panel = list.closest(".split").querySelector(".chosen");
    this.lay(); // before the height of rows is measured
    if (this.isWhole) return;
    this.total = Number(total);
    this.block = Number(block);
    this.source = rows ? new ServedCalls(rows) : new StoredCalls();
    this.layOut();
  }

  // Put an empty block in the place of every block that the page lacks, as high as those it has.
  layOut() {
    const given = new Map([...this.list.children].map((block) => [Number(block.dataset.at), block]));
    const rows = [...this.list.querySelectorAll(".row")];
    const folded = rows.find((row) => !row.querySelector("details[open]")) ?? rows[0];
    this.height = folded.offsetHeight;
    this.blocks = [];
    for (let at = 0; at < this.total; at += this.block) {
      const block = given.get(at) ?? document.createElement("div");
      if (!given.has(at)) {
        block.className = "block";
        block.dataset.at = at;
        block.style.height = `${this.height * Math.min(this.block, this.total - at)}px`;
      }
      this.blocks.push(block);
    }
    this.list.replaceChildren(...this.blocks);
    this.observer = new IntersectionObserver((seen) => seen.forEach((one) => this.see(one)), {
      rootMargin: NEAR,
    });
    for (const block of this.blocks) this.observer.observe(block);
  }

  async see({ target, isIntersecting }) {
    target.near = isIntersecting;
    if (!isIntersecting) this.clear(target);
    else if (!target.firstElementChild) {
      await sleep(PAUSE);
      if (target.near) await this.fill(target).catch((error) => report(target, error));
    }
  }

  async fill(block) {
    if (block.firstElementChild) return;
    const rows = nodes(await this.source.rows(this.attempt, Number(block.dataset.at)));
    if (block.firstElementChild) return;
    for (const call of rows.querySelectorAll("details.call")) {
      call.open = openCalls.has(call.id);
      if (call.id === chosen.get(this.attempt)) mark(call);
    }
    block.replaceChildren(rows);
    block.style.height = "";
  }

  clear(block) {
    if (!block.firstElementChild || block.contains(document.activeElement)) return;
    block.style.height = `${block.offsetHeight}px`;
    block.replaceChildren();
  }

  // Return the row at a position of the tree; its block gets its rows.
  async row(at) {
    if (this.isWhole) return this.list.querySelectorAll(":scope > .row")[at];
    if (at < 0 || at >= this.total) return undefined;
    const block = this.blocks[Math.floor(at / this.block)];
    await this.fill(block);
    return block.children[at % this.block];
  }

  async find(call) {
    const there = document.getElementById(identifier(this.attempt, call));
    if (there || this.isWhole) return there?.parentElement;
    return this.row(await this.source.position(this.attempt, call));
  }

  async load(call) {
    if (call.querySelector(":scope > .inside") || this.isWhole) return;
    const number = Number(call.id.split("c")[1]);
    const body = await this.source.body(this.attempt, number, this.block);
    if (!call.querySelector(":scope > .inside")) call.append(nodes(body));
  }

  // Show a call: beside the tree, or below its row.
  async show(call) {
    if (!WIDE.matches) {
      call.open = true;
      return;
    }
    const { id } = call, isLoaded = this.isWhole || call.querySelector(":scope > .inside");
    for (const old of this.list.querySelectorAll("[aria-current]")) old.removeAttribute("aria-current");
    mark(call);
    chosen.set(this.attempt, id);
    call.open = false;
    if (!isLoaded) await sleep(PAUSE); // the keys may go on to the next row
    if (chosen.get(this.attempt) !== id) return;
    await this.load(call);
    if (chosen.get(this.attempt) !== id) return;
    const heading = document.createElement("h2"), body = call.querySelector(":scope > .inside").cloneNode(true);
    heading.textContent = call.querySelector(".name").textContent;
    this.panel.replaceChildren(heading, body);
    this.panel.scrollTop = 0;
    fillParts(body);
  }

  lay() {
    this.panel.hidden = !WIDE.matches;
    this.panel.parentElement.classList.toggle("beside-tree", WIDE.matches);
  }

  // Show the call that was chosen before, is open, or is the first of a model.
  async choose() {
    const before = chosen.get(this.attempt);
    const kept = before && (await this.find(Number(before.split("c")[1])))?.firstElementChild;
    if (chosen.get(this.attempt) !== before) return; // somebody has chosen another one meanwhile
    const call = kept || this.list.querySelector("details[open]") || this.list.querySelector("details:has(> summary .llm)") || this.list.querySelector("details");
    if (call) await this.show(call);
  }

  close() {
    this.panel.replaceChildren();
    const call = document.getElementById(chosen.get(this.attempt));
    if (call) call.open = true;
  }
}

const mark = (call) => call.firstElementChild.setAttribute("aria-current", "true");

// Request the parts of a body that are read only when somebody looks at it.
let shade; // the value that colours tokens, if somebody has chosen one
async function fillParts(place) {
  for (const part of place.querySelectorAll("[data-part]:not(details)")) await fillPart(part);
}

async function fillPart(part) {
  const address = part.dataset.part, summary = part.querySelector(":scope > summary");
  part.removeAttribute("data-part");
  try {
    const response = await fetch(address);
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    part.replaceChildren(...(summary ? [summary] : []), nodes(await response.text()));
    if (shade) for (const one of part.querySelectorAll(".shading")) one.dataset.shade = shade;
  } catch (error) { report(part, error); }
}

function report(place, error) {
  const line = document.createElement("p");
  line.className = "bad";
  line.textContent = `This cannot be read: ${error.message}. Load the page again.`;
  place.append(line);
}

const callsOf = (place) => [...lists.values()].find((calls) => calls.list.contains(place));

function focusRow(row) {
  const summary = row?.querySelector("summary");
  summary?.scrollIntoView({ block: "center" });
  summary?.focus({ preventScroll: true });
  return row;
}

// Open a call; return its row, or nothing if the tree has no such call, or does not have it yet.
async function reveal(attempt, call) {
  const row = focusRow(await lists.get(attempt)?.find(call));
  sought = row ? undefined : [attempt, call];
  if (row) await lists.get(attempt).show(row.firstElementChild);
  return row;
}

function follow(hash) {
  const [, attempt, call] = /^#a(\d+)c(\d+)$/.exec(hash) ?? [];
  if (call !== undefined) reveal(Number(attempt), Number(call));
}

function start() {
  lists.clear();
  document.querySelectorAll(".calls").forEach((list, index) => {
    lists.set(index + 1, new Calls(list));
  });
  adapt();
}

// A wide screen has a panel for the chosen call; another one opens calls in their place.
function adapt() {
  for (const button of document.querySelectorAll("button[data-open]")) button.hidden = WIDE.matches;
  for (const calls of lists.values()) {
    const wasHidden = calls.panel.hidden;
    calls.lay();
    if (WIDE.matches) calls.choose().catch((error) => report(calls.panel, error));
    else if (!wasHidden) calls.close();
  }
}

function isSeen(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}

// Show the same tree with more of it, when the server has read that, at the same place.
async function complete() {
  const state = document.querySelector("[data-next]");
  if (!state) return;
  const response = await fetch(state.dataset.next);
  if (!response.ok) return report(state, new Error(`the server answered ${response.status}`));
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const top = (row) => row.getBoundingClientRect().top;
  const first = [...document.querySelectorAll("details.call")].find((row) => top(row) > 0);
  const focused = document.activeElement.closest("details.call")?.id;
  const wasSeen = focused && isSeen(document.activeElement);
  const [id, offset] = scrollY > 0 && first ? [first.id, top(first)] : [];
  document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main")));
  for (const calls of lists.values()) calls.observer?.disconnect();
  start();
  const place = async (name) => {
    const [attempt, call] = name.slice(1).split("c").map(Number);
    return (await lists.get(attempt)?.find(call))?.firstElementChild;
  };
  const row = id && (await place(id));
  for (const call of document.querySelectorAll("details.call")) call.open ||= openCalls.has(call.id);
  if (row) scrollBy(0, top(row) - offset);
  if (sought) await reveal(...sought);
  const summary = focused && (await place(focused))?.querySelector("summary");
  if (summary) {
    summary.focus({ preventScroll: true });
    if (wasSeen && !isSeen(summary)) summary.scrollIntoView({ block: "center" });
  }
  complete();
}

document.addEventListener("toggle", (event) => {
  const call = event.target;
  if (call.matches?.("details[data-part]") && call.open) return fillPart(call);
  if (!call.matches?.("details.call")) return;
  if (!call.open) openCalls.delete(call.id);
  else {
    if (WIDE.matches) return callsOf(call)?.show(call); // the search of the browser opens calls
    openCalls.add(call.id);
    callsOf(call)?.load(call).then(() => fillParts(call)).catch((error) => report(call, error));
  }
}, true);

document.addEventListener("keydown", async (event) => {
  const row = event.target.closest?.(".row");
  if (!row || !event.target.matches(".call > summary") || event.ctrlKey || event.metaKey) return;
  const at = Number(row.getAttribute("aria-posinset")) - 1;
  const last = Number(row.getAttribute("aria-setsize")) - 1;
  const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const there = focusRow(await callsOf(row).row(next));
  if (there && WIDE.matches) callsOf(there).show(there.firstElementChild);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#a"]');
  if (link) follow(link.getAttribute("href"));
  const call = event.target.closest?.(".call > summary")?.parentElement;
  if (call && WIDE.matches) {
    event.preventDefault();
    history.replaceState(null, "", `#${call.id}`);
    callsOf(call).show(call).catch((error) => report(callsOf(call).panel, error));
  }
  const colour = event.target.closest?.("button[data-shade]");
  if (colour) {
    shade = colour.dataset.shade;
    for (const one of document.querySelectorAll(".shading")) one.dataset.shade = shade;
  }
  const button = event.target.closest?.("button[data-open]");
  if (!button) return;
  for (const call of document.querySelectorAll("details.call")) call.open = button.dataset.open === "yes";
});

document.addEventListener("submit", async (event) => {
  if (!event.target.matches("form.jump")) return;
  event.preventDefault();
  const { attempt, call } = event.target.elements;
  if (await reveal(Number(attempt.value), Number(call.value))) return;
  if (document.querySelector("[data-next]")) return; // it may come
  call.setCustomValidity(`There is no call #${call.value}.`);
  call.reportValidity();
  call.addEventListener("input", () => call.setCustomValidity(""), { once: true });
});

// The pointer in a chart shows the values of all charts of the page at the same place of their axis.
let pointed; // the value on the axis
function point(value) {
  if (value === pointed) return;
  pointed = value;
  for (const chart of document.querySelectorAll("svg.chart[data-values]")) {
    const [low, high, left, right] = chart.dataset.axis.split(" ").map(Number);
    const isOn = value >= low && value <= high, line = chart.querySelector(".cursor");
    const place = left + ((value - low) / (high - low)) * (right - left);
    line.setAttribute("visibility", isOn ? "visible" : "hidden");
    if (isOn) for (const end of ["x1", "x2"]) line.setAttribute(end, place);
    const series = JSON.parse(chart.dataset.values);
    chart.nextElementSibling.querySelectorAll("li .dim").forEach((text, number) => {
      text.dataset.last ??= text.textContent;
      const found = series[number].find(([x]) => x === value);
      text.textContent = found ? `${Number(value.toPrecision(4))}: ${Number(found[1].toPrecision(4))}` : text.dataset.last;
    });
  }
}

document.addEventListener("pointermove", (event) => {
  const chart = event.target.closest?.("svg.chart[data-values]");
  if (!chart) return point(undefined);
  const [low, high, left, right] = chart.dataset.axis.split(" ").map(Number);
  const box = chart.getBoundingClientRect(), { width } = chart.viewBox.baseVal;
  const at = low + (((event.clientX - box.left) / box.width) * width - left) / (right - left) * (high - low);
  const known = JSON.parse(chart.dataset.values).flat().map(([x]) => x);
  point(known.reduce((best, x) => (Math.abs(x - at) < Math.abs(best - at) ? x : best), known[0]));
});

addEventListener("hashchange", () => follow(location.hash));
WIDE.addEventListener("change", adapt);
const wanted = document.querySelector(".calls details[open]");
start();
if (location.hash) follow(location.hash);
else if (wanted) focusRow(wanted.parentElement);
complete();
