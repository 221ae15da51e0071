// Tables: a heading sorts, a menu filters rows and hides columns, and what is shown is copied as CSV.
// The address keeps all of it, so a link and a page that is refreshed show the same.
const number = (text) => (/^[+-]?[\d,.]+(e[+-]?\d+)?( ?%)?$/i.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN);
const text = (cell) => cell?.textContent.trim() ?? "";
const grids = (root) => [...root.querySelectorAll("table.grid")].filter((table) => table.tHead && table.tBodies[0].rows.length > 1);
const headings = (table) => [...table.tHead.rows[0].cells];

function compare(a, b) {
  if (!a || !b) return !a - !b; // an empty cell comes last
  const [x, y] = [number(a), number(b)];
  return isNaN(x) || isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
}

function sort(table, column, falls) {
  const [body] = table.tBodies, sign = falls ? -1 : 1;
  const rows = [...body.rows].map((row) => [text(row.cells[column]), row]);
  rows.sort(([a], [b]) => (!a || !b ? compare(a, b) : sign * compare(a, b)));
  body.append(...rows.map(([, row]) => row));
  headings(table).forEach((cell, at) => {
    if (at === column) cell.setAttribute("aria-sort", falls ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}

/** Whether a cell fulfils a filter: `> 0.5`, `<= 3`, or a text that it contains. */
function fulfils(cell, filter) {
  const [, sign, limit] = /^([<>]=?)\s*(\S+)$/.exec(filter) ?? [];
  const [value, bound] = [number(cell), number(limit ?? "")];
  if (!sign || isNaN(bound)) return cell.toLowerCase().includes(filter.toLowerCase());
  return { ">": value > bound, ">=": value >= bound, "<": value < bound, "<=": value <= bound }[sign];
}

/** The state of a table in the address: the order, the filter of columns, and those that are hidden. */
function state(place) {
  const values = new URLSearchParams(location.search), own = (name) => values.getAll(name).map((each) => each.split(".")).filter(([table]) => Number(table) === place);
  const [order] = own("sort");
  return {
    order: order && [parseInt(order[1]), order[1].endsWith("-")],
    filters: own("only").map(([, column, ...filter]) => [Number(column), filter.join(".")]),
    hidden: own("hide").map(([, column]) => Number(column)),
  };
}

function apply(table, place) {
  const { order, filters, hidden } = state(place);
  if (order && order[0] < headings(table).length) sort(table, ...order);
  for (const row of table.rows) {
    [...row.cells].forEach((cell, at) => { cell.hidden = hidden.includes(at); });
    if (row.parentElement !== table.tHead) row.hidden = filters.some(([at, filter]) => !fulfils(text(row.cells[at]), filter));
  }
}

/** Keep the values of a parameter that are of other columns, and add one. */
function keep(name, place, column, value) {
  const address = new URL(location.href), own = name === "sort" ? `${place}.` : `${place}.${column}`;
  const isOther = (each) => (name === "sort" ? !each.startsWith(own) : each !== own && !each.startsWith(`${own}.`));
  const others = address.searchParams.getAll(name).filter(isOther);
  address.searchParams.delete(name);
  for (const each of [...others, ...(value === undefined ? [] : [value])]) address.searchParams.append(name, each);
  history.replaceState(null, "", address);
}

function button(className, ...content) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", className });
  made.append(...content);
  return made;
}

function menu(table, place) {
  const { filters, hidden } = state(place), made = document.createElement("details"), summary = document.createElement("summary");
  made.className = "columns";
  summary.append("Columns");
  made.append(summary, ...headings(table).map((cell, at) => {
    const line = document.createElement("div"), label = document.createElement("label"), box = document.createElement("input"), filter = document.createElement("input");
    Object.assign(box, { type: "checkbox", checked: !hidden.includes(at) });
    Object.assign(filter, { value: filters.find(([column]) => column === at)?.[1] ?? "", placeholder: "contains, or > 0.5" });
    filter.setAttribute("aria-label", `Rows whose ${text(cell)} is or contains`);
    box.addEventListener("change", () => { keep("hide", place, at, box.checked ? undefined : `${place}.${at}`); apply(table, place); });
    filter.addEventListener("input", () => { keep("only", place, at, filter.value ? `${place}.${at}.${filter.value}` : undefined); apply(table, place); });
    label.append(box, ` ${text(cell)}`);
    line.append(label, filter);
    return line;
  }));
  return made;
}

const quoted = (cell) => `"${text(cell).replaceAll('"', '""')}"`;

function csv(table) {
  const shown = (cells) => [...cells].filter((each) => !each.hidden);
  return shown(table.rows).map((row) => shown(row.cells).map(quoted).join(",")).join("\n");
}

function prepare(root) {
  grids(root).forEach((table, place) => {
    table.dataset.place = place;
    for (const cell of headings(table)) cell.append(button("sort", ...cell.childNodes));
    table.closest(".scroll").after(button("copy", "Copy as CSV"), menu(table, place));
    apply(table, place);
  });
}

document.addEventListener("click", ({ target }) => {
  const cell = target.closest(".sort")?.closest("th"), copy = target.closest(".scroll + .copy");
  if (copy) return navigator.clipboard.writeText(csv(copy.previousElementSibling.querySelector("table"))).then(() => { copy.textContent = "Copied"; });
  if (!cell) return;
  const table = cell.closest("table"), { place } = table.dataset, falls = cell.getAttribute("aria-sort") === "ascending";
  keep("sort", place, cell.cellIndex, `${place}.${cell.cellIndex}${falls ? "-" : ""}`);
  apply(table, Number(place));
});

// A page that was requested again is prepared before `ui.js` merges it.
document.addEventListener("ltrain:read", ({ detail }) => prepare(detail));
prepare(document);
