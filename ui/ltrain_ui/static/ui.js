// Keys: in a list J and K move and Enter opens; on other pages a key clicks its link or button.
const items = [...document.querySelectorAll("a.item")];

function move(by) {
  const at = items.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : items.length - 1) : at + by;
  items[Math.min(Math.max(next, 0), items.length - 1)].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea")) return;
  const key = event.key.toLowerCase();
  if (items.length && (key === "j" || key === "k")) move(key === "j" ? 1 : -1);
  else document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.click();
});
