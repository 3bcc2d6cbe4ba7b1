// A link to what is folded unfolds it, and paper has everything. A click on the head of a column sorts its table.
const unfold = (place) => place?.querySelectorAll("details").forEach((one) => { one.open = true; });
const follow = () => unfold(document.getElementById(location.hash.slice(1))?.closest("section"));
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => unfold(document));
for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => setTimeout(follow));
follow();
// Numbers from the largest on, text from A on; another click turns it.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (!table.tHead || !body || body.rows.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];
  const valueOf = (row, place) => {
    const cell = row.cells[place];
    const number = cell.hasAttribute("data-value") ? cell : cell.querySelector("[data-value]");
    const held = number ? number.getAttribute("data-value") : cell.textContent.trim();
    if (number) return held === "null" ? null : Number(held);
    return held === "" || held === "\u2013" ? null : held;
  };
  const compare = (one, other) =>
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), "en", {numeric: true});
  const sortBy = (place) => {
    const head = heads[place];
    const values = new Map([...body.rows].map((row) => [row, valueOf(row, place)]));
    const numbers = [...values.values()].some((value) => typeof value === "number");
    const before = head.getAttribute("aria-sort");
    const ascending = before ? before === "descending" : !numbers;
    const rows = [...body.rows].sort((one, other) => {
      const [a, b] = [values.get(one), values.get(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return ascending ? compare(a, b) : compare(b, a);
    });
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows);
  };
  table.classList.add("sortable");
  heads.forEach((head, place) => {
    head.tabIndex = 0;
    head.addEventListener("click", () => sortBy(place));
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sortBy(place);
    });
  });
}
