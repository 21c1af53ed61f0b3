// Tables sort by the numbers behind their cells; long ones filter; a link of the picture filters the table of links.

const valueOf = (cell) => {
  if (!cell) return "";
  const text = cell.dataset.v ?? cell.textContent.trim(), number = Number(text);
  return text === "" || Number.isNaN(number) ? text : number;
};

const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en"));

function sortBy(table, head) {
  const heads = [...table.tHead.rows[0].cells], place = heads.indexOf(head);
  const sign = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
  heads.forEach((other) => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[place]), row]);
  rows.sort((a, b) => sign * order(a[0], b[0]));
  table.tBodies[0].append(...rows.map((pair) => pair[1]));
}

function makeTables() {
  for (const head of document.querySelectorAll("table.sortable th"))
    head.querySelector("button")?.addEventListener("click", () => sortBy(head.closest("table"), head));
  for (const box of document.querySelectorAll(".filter"))
    box.addEventListener("input", () => {
      const wanted = box.value.toLowerCase();
      for (const row of box.nextElementSibling.querySelectorAll("tbody tr")) row.classList.toggle("out", !row.textContent.toLowerCase().includes(wanted));
    });
  for (const row of document.querySelectorAll("#devices tbody tr")) // named beside each value where the table is too narrow for columns
    [...row.cells].forEach((cell, place) => { cell.dataset.label = row.closest("table").tHead.rows[0].cells[place].textContent.trim(); });
  let chosen = null;
  for (const link of document.querySelectorAll("svg.topology .link")) {
    link.setAttribute("tabindex", "0");
    link.setAttribute("role", "button");
    const filter = () => {
      chosen = chosen === link ? null : link;
      const names = chosen ? chosen.dataset.link.split("|") : null;
      for (const row of document.querySelectorAll("#links tbody tr")) row.classList.toggle("out", names !== null && !names.includes(row.cells[0].textContent));
    };
    link.addEventListener("click", filter);
    link.addEventListener("keydown", (event) => { if (event.key === "Enter") filter(); });
  }
}
