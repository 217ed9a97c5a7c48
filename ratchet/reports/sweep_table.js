"use strict";
// Sorts the members by a column that is clicked, and shows those that hold a text. What was chosen
// outlasts the page's loading itself anew, where the browser lets it keep anything.
(() => {
  const table = document.getElementById("member-table"), body = table.tBodies[0];
  const field = document.getElementById("member-filter"), count = document.getElementById("member-count");
  const heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
  const place = "sweep:" + document.title;
  let chosen = { column: -1, descending: false, text: "" };
  try { chosen = Object.assign(chosen, JSON.parse(sessionStorage.getItem(place) || "{}")); } catch { /* nothing kept */ }

  const text = (row, column) => row.cells[column].textContent.trim();
  const number = (value) => (/^[-−+]?[\d.]/.test(value) ? parseFloat(value.replace("−", "-")) : NaN);

  function compare(first, second) {
    const [a, b] = [first, second].map((row) => text(row, chosen.column));
    if ((a === "–") !== (b === "–")) return a === "–" ? 1 : -1; // what is not known comes last
    const [x, y] = [a, b].map(number);
    const order = isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y;
    return chosen.descending ? -order : order;
  }

  function show() {
    const words = chosen.text.toLowerCase().split(/\s+/).filter(Boolean);
    const ordered = chosen.column in heads ? [...rows].sort(compare) : rows;
    let shown = 0;
    for (const row of ordered) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
      shown += !row.hidden;
      body.append(row);
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
    heads.forEach((head, k) => {
      head.ariaSort = k !== chosen.column ? "none" : chosen.descending ? "descending" : "ascending";
    });
    try { sessionStorage.setItem(place, JSON.stringify(chosen)); } catch { /* a closed browser */ }
  }

  heads.forEach((head, k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      chosen.descending = chosen.column === k && !chosen.descending;
      chosen.column = k;
      show();
    });
  });
  field.value = chosen.text;
  field.addEventListener("input", () => { chosen.text = field.value; show(); });
  show();
})();
