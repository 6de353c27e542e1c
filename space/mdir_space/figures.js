(() => {
  "use strict";
  // Figures answer here: which cell is asked, by pointer, finger or keys, and what it says. All text is set as text.
  const known = new WeakMap();
  const MOST_ZOOM = 8;

  const dataOf = (cells) => {
    if (!known.has(cells)) {
      const data = JSON.parse(cells.dataset.cells);
      if (data.steps) data.steps = Uint8Array.from(atob(data.steps), (letter) => letter.charCodeAt(0));
      known.set(cells, { data, row: 0, column: 0 });
    }
    return known.get(cells);
  };

  const said = (data, row, column) => {
    const sides = [data.rows[row], data.columns[column]].map((label, side) => data.sides[side].replace("{}", label));
    const words = [sides.filter(Boolean).join(", ")];
    if (data.texts) words.push(data.texts[row][column]);
    if (data.values) words.push(`${data.value} ${data.values[row][column].toLocaleString("en")}`);
    if (data.steps) words.push(`${data.value} ${(data.steps[row * data.columns.length + column] / 255).toFixed(2)}`);
    const notes = (data.notes || []).filter(([i, j]) => i === row && j === column).map(([, , note]) => note);
    const text = [words.join(": "), ...notes].join("; ");
    return text.charAt(0).toUpperCase() + text.slice(1) + ".";
  };

  const ask = (cells, row, column) => {
    const asked = dataOf(cells);
    const { data } = asked;
    asked.row = Math.max(0, Math.min(data.rows.length - 1, row));
    asked.column = Math.max(0, Math.min(data.columns.length - 1, column));
    const figure = cells.closest(".answers");
    for (const other of figure.querySelectorAll(".cells")) other.classList.toggle("asked", other === cells);
    const mark = cells.querySelector(".mark");
    mark.style.left = `${100 * asked.column / data.columns.length}%`;
    mark.style.top = `${100 * asked.row / data.rows.length}%`;
    mark.style.width = `${100 / data.columns.length}%`;
    mark.style.height = `${100 / data.rows.length}%`;
    figure.querySelector(".said").textContent = said(data, asked.row, asked.column);
  };

  const cellAt = (cells, event) => {
    const box = cells.getBoundingClientRect();
    const { data } = dataOf(cells);
    return [
      Math.floor(data.rows.length * (event.clientY - box.top) / box.height),
      Math.floor(data.columns.length * (event.clientX - box.left) / box.width),
    ];
  };

  const element = (name, words) => {
    const made = document.createElement(name);
    made.textContent = words;
    return made;
  };

  // The parts of the pair of layers that a cell of the map stands for.
  const open = (cells) => {
    const { data, row, column } = dataOf(cells);
    if (!data.pairs) return;
    const place = cells.closest(".answers").querySelector(".of-pair");
    const pair = [data.rows[row], data.columns[column]];
    const names = pair.map((label, side) => data.sides[side].replace("{}", label)).join(" and ");
    const tests = data.pairs[pair.join(",")];
    if (!tests) {
      place.replaceChildren(element("p", `The parts of ${names} were not analysed: only matched layers are, and of many a few.`));
      return;
    }
    const table = document.createElement("table");
    table.append(element("caption", `The parts of ${names}, each with its most significant test`));
    const lines = [["part", "looks for", "log10 p"], ...tests.map(([part, test, p]) => [part, test, p.toLocaleString("en")])];
    const body = document.createElement("tbody");
    lines.forEach((line, place) => {
      const made = document.createElement("tr");
      line.forEach((words, at) => {
        const cell = element(place === 0 || at === 0 ? "th" : "td", words);
        if (cell.tagName === "TH") cell.scope = place === 0 ? "col" : "row";
        made.append(cell);
      });
      if (place === 0) table.createTHead().append(made);
      else body.append(made);
    });
    table.append(body);
    place.replaceChildren(table);
  };

  const zoom = (figure, factor) => {
    const sheet = figure.querySelector(".sheet");
    const now = Math.max(1, Math.min(MOST_ZOOM, (parseFloat(sheet.dataset.zoom) || 1) * factor));
    sheet.dataset.zoom = now;
    sheet.style.width = `${100 * now}%`;
    figure.classList.toggle("zoomed", now > 1);
    const mark = figure.querySelector(".cells.asked .mark");
    if (mark) mark.scrollIntoView({ block: "nearest", inline: "center" });
  };

  const save = (figure, kind) => {
    const image = [...figure.querySelectorAll(".sheet img")].find((each) => each.offsetParent) ||
      figure.querySelector(".sheet img");
    const hand = (address) => {
      const link = document.createElement("a");
      link.href = address;
      link.download = `${figure.dataset.name}.${kind}`;
      document.body.append(link);
      link.click();
      link.remove();
    };
    if (kind === "svg") {
      hand(image.src);
      return;
    }
    const drawn = new Image();
    drawn.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * drawn.naturalWidth, 2 * drawn.naturalHeight];
      canvas.getContext("2d").drawImage(drawn, 0, 0, canvas.width, canvas.height);
      hand(canvas.toDataURL("image/png"));
    };
    drawn.src = image.src;
  };

  const closest = (event, selector) => (event.target instanceof Element ? event.target.closest(selector) : null);

  document.addEventListener("pointermove", (event) => {
    const cells = closest(event, ".answers .cells");
    if (cells) ask(cells, ...cellAt(cells, event));
  });
  document.addEventListener("click", (event) => {
    const cells = closest(event, ".answers .cells");
    if (cells) {
      ask(cells, ...cellAt(cells, event));
      open(cells);
    }
    const button = closest(event, ".answers .tools button");
    if (!button) return;
    const figure = button.closest(".answers");
    const what = button.dataset.do;
    if (what === "closer" || what === "farther") zoom(figure, what === "closer" ? 2 : 0.5);
    else save(figure, what);
  });
  document.addEventListener("focusin", (event) => {
    const cells = closest(event, ".answers .cells");
    if (cells) ask(cells, dataOf(cells).row, dataOf(cells).column);
  });
  document.addEventListener("keydown", (event) => {
    const cells = closest(event, ".answers .cells");
    if (!cells || event.ctrlKey || event.metaKey || event.altKey) return;
    const { data, row, column } = dataOf(cells);
    const moves = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      Home: [row, 0], End: [row, data.columns.length - 1], PageUp: [row - 10, column], PageDown: [row + 10, column],
    };
    if (moves[event.key]) ask(cells, ...moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") open(cells);
    else if (event.key === "+" || event.key === "-") zoom(cells.closest(".answers"), event.key === "+" ? 2 : 0.5);
    else return;
    event.preventDefault();
    if (moves[event.key]) cells.querySelector(".mark").scrollIntoView({ block: "nearest", inline: "nearest" });
  });
})();
