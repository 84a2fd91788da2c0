"use strict";
// A board's page: sorting by a click on a column's name, and filters.

const FILTERS = ["model", "track", "oracle", "status"];
const value = (cell) => (cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v));

function sort(button) {
  const head = button.closest("th"), table = button.closest("table"), at = head.cellIndex;
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const x = value(a.cells[at]), y = value(b.cells[at]);
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
  });
  table.tBodies[0].append(...rows);
}

function filter() {
  const wanted = FILTERS.map((name) => [name, document.getElementById(`f-${name}`).value]);
  for (const row of document.querySelectorAll(".ranking tbody tr"))
    row.hidden = wanted.some(([name, want]) => want && row.dataset[name] !== want);
}

// With an environment chosen, the score column shows that one's score; ranks stay those of the suite.
function choose(env) {
  for (const cell of document.querySelectorAll("td.score")) {
    const shown = cell.querySelector("span");
    cell.dataset.whole ??= cell.dataset.v;
    shown.dataset.whole ??= shown.textContent;
    const one = [...cell.querySelectorAll("template")].find((t) => t.dataset.env === env);
    shown.textContent = one ? one.content.textContent : env ? "–" : shown.dataset.whole;
    cell.dataset.v = one ? one.dataset.v : cell.dataset.whole;
  }
}

for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sort(button));
for (const name of FILTERS) document.getElementById(`f-${name}`).addEventListener("change", filter);
document.getElementById("f-env")?.addEventListener("change", (event) => choose(event.target.value));
document.body.dataset.ready = "yes";
