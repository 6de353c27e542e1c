(() => {
  "use strict";
  // Interactive figures: select a cell by pointer, touch or keyboard, and show its text. All text is set as text.
  const known = new WeakMap();
  const MOST_ZOOM = 8;
  const FACTORS = { closer: 2, farther: 0.5, whole: 0 };

  let held = {};

  const dataOf = (cells) => {
    if (!known.has(cells)) {
      const data = JSON.parse(cells.dataset.cells);
      if (data.steps) data.steps = Uint8Array.from(atob(data.steps), (letter) => letter.charCodeAt(0));
      known.set(cells, { data, row: 0, column: 0, zoom: 1, left: 0, top: 0 });
    }
    return known.get(cells);
  };

  const place = (data, row, column) => row * data.columns.length + column;
  const isIn = (data, row, column) => row >= 0 && row < data.rows.length && column >= 0 && column < data.columns.length;

  const sideOf = (data, side, label) => {
    const words = data.sides[side].replace("{}", () => label);
    return label.includes(" to ") ? words.replace(/^(channel|place) /, "$1s ") : words;
  };
  const said = (data, row, column) => {
    const sides = [data.rows[row], data.columns[column]].map((label, side) => sideOf(data, side, label));
    const words = [sides.filter(Boolean).join(", ")].filter(Boolean);
    if (data.texts) words.push(data.texts[data.said[place(data, row, column)]]);
    if (data.values) words.push(`${data.value} ${data.values[row][column].toLocaleString("en")}`);
    if (data.steps) words.push(`${data.value} ${(data.steps[row * data.columns.length + column] / 255).toFixed(2)}`);
    const notes = (data.notes || []).filter(([i, j]) => i === row && j === column).map(([, , note]) => note);
    const text = [words.join(": "), ...notes].join("; ");
    // Model names are not capitalised.
    const begins = text.split(/[\s,:]/, 1)[0].includes("/") ? text.charAt(0) : text.charAt(0).toUpperCase();
    return `${begins}${text.slice(1)}.`;
  };

  const linkOf = (data, row, column) => (data.links ? data.links[data.to[place(data, row, column)]] : "");

  // Right edges of the columns, as fractions of the width.
  const endsOf = (data) => {
    let end = 0;
    return data.columns.map((_, at) => { end += data.widths ? data.widths[at] : 1 / data.columns.length; return end; });
  };

  // Merged cells form a block: its first and last row and column.
  const blockOf = (data, row, column) => {
    const reach = (down, right) => {
      let [i, j] = [row, column];
      while (data.merged && isIn(data, i + down, j + right) &&
        data.said[place(data, i + down, j + right)] === data.said[place(data, row, column)]) {
        [i, j] = [i + down, j + right];
      }
      return down ? i : j;
    };
    return { top: reach(-1, 0), bottom: reach(1, 0), left: reach(0, -1), right: reach(0, 1) };
  };

  // The next cell in a direction; merged cells count as one.
  const next = (data, row, column, down, right) => {
    const { top, bottom, left, right: last } = blockOf(data, row, column);
    const to = [down < 0 ? top + down : down > 0 ? bottom + down : row, right < 0 ? left + right : right > 0 ? last + right : column];
    return data.merged && !isIn(data, ...to) ? [row, column] : to;
  };

  // A lens over the cells enlarges a part of the picture, but not the labels. In fractions of the cells' box.
  const drawMark = (cells) => {
    const { data, row, column, zoom, left, top } = dataOf(cells);
    const [block, ends] = [blockOf(data, row, column), endsOf(data)];
    const begins = block.left ? ends[block.left - 1] : 0;
    const { style } = cells.querySelector(".mark");
    style.left = `${100 * zoom * (begins - left)}%`;
    style.top = `${100 * zoom * (block.top / data.rows.length - top)}%`;
    style.width = `${100 * zoom * (ends[block.right] - begins)}%`;
    style.height = `${100 * zoom * (block.bottom + 1 - block.top) / data.rows.length}%`;
  };
  // Labels of the visible rows and columns, over the labels of the picture, which belong to the whole.
  const LINE = 14;
  const LETTER = 7;
  const drawTicks = (cells) => {
    const { data, zoom, left, top } = dataOf(cells);
    const sheet = cells.closest(".sheet");
    for (const old of sheet.querySelectorAll(".ticks")) if (old.cells === cells) old.remove();
    if (zoom === 1) return;
    const [x, y, width, height] = boxOf(cells);
    for (const { side, depth, labels } of data.ticks || []) {
      const strip = element("div", "");
      strip.className = `ticks ${side}`;
      strip.setAttribute("aria-hidden", "true");
      strip.cells = cells;
      const down = side !== "bottom";
      const place = down ? { left: side === "left" ? x - depth : x + width, top: y, width: depth, height } :
        { left: x, top: y + height, width, height: depth };
      for (const [name, value] of Object.entries(place)) strip.style[name] = `${value}%`;
      sheet.append(strip);
      const room = zoom * (down ? strip.clientHeight : strip.clientWidth) / labels.length;
      const longest = Math.max(...labels.map((label) => Math.max(...label.split("\n").map((line) => line.length))));
      const lines = Math.max(...labels.map((label) => label.split("\n").length));
      const least = down ? LINE * lines : LETTER * longest + 4;
      const step = [1, 2, 5, 10, 20, 50, 100, 200].find((each) => each * room >= least) || labels.length;
      labels.forEach((label, at) => {
        const share = zoom * ((at + 0.5) / labels.length - (down ? top : left));
        if (at % step || share < 0 || share > 1) return;
        const tick = element("span", label);
        tick.style[down ? "top" : "left"] = `${100 * share}%`;
        strip.append(tick);
      });
    }
  };
  const boxOf = (cells) => ["left", "top", "width", "height"].map((side) => parseFloat(cells.style[side]));
  const within = (share, zoom) => Math.max(0, Math.min(1 - 1 / zoom, share));
  const look = (cells, zoom, left, top) => {
    const asked = dataOf(cells);
    asked.zoom = Math.max(1, Math.min(MOST_ZOOM, zoom));
    [asked.left, asked.top] = [within(left, asked.zoom), within(top, asked.zoom)];
    let lens = cells.querySelector(".lens");
    if (!lens) {
      lens = document.createElement("div");
      lens.className = "lens";
      for (const shown of cells.closest(".sheet").querySelectorAll(":scope > span")) {
        const part = document.createElement("span");
        part.className = shown.className;
        const image = shown.querySelector("img").cloneNode();
        image.alt = "";
        part.append(image);
        lens.append(part);
      }
      cells.prepend(lens);
    }
    const [x, y, width, height] = boxOf(cells);
    for (const image of lens.querySelectorAll("img")) {
      image.style.setProperty("width", `${10000 * asked.zoom / width}%`, "important");
      image.style.left = `${-100 * asked.zoom * (x / width + asked.left)}%`;
      image.style.top = `${-100 * asked.zoom * (y / height + asked.top)}%`;
    }
    cells.classList.toggle("zoomed", asked.zoom > 1);
    drawMark(cells);
    drawTicks(cells);
    const note = cells.closest(".answers").querySelector(".part");
    const ends = endsOf(asked.data);
    const first = (share) => ends.findIndex((end) => end > share + 1e-9);
    const [n, size] = [asked.data.rows.length, 1 / asked.zoom];
    const down = [Math.floor(n * asked.top + 1e-6), Math.min(n - 1, Math.ceil(n * (asked.top + size) - 1e-6) - 1)];
    const right = first(asked.left + size - 2e-9);
    const along = [first(asked.left), right < 0 ? ends.length - 1 : right];
    const range = (labels, [from, to]) => `${labels[from]} to ${labels[to]}`;
    note.hidden = asked.zoom === 1;
    note.textContent = `Enlarged: ${range(asked.data.rows, down)} down, ${range(asked.data.columns, along)} along.`;
  };
  // Zoom in on a point, which keeps its position.
  const zoomAt = (cells, factor, x, y) => {
    const { data, zoom, left, top } = dataOf(cells);
    if (data.merged) return; // a tree is read whole
    const now = Math.max(1, Math.min(MOST_ZOOM, zoom * factor));
    look(cells, now, left + x / zoom - x / now, top + y / zoom - y / now);
  };
  const middle = (cells) => {
    const { data, row, column, zoom, left, top } = dataOf(cells);
    if (!cells.classList.contains("asked")) return [0.5, 0.5];
    const ends = endsOf(data);
    const x = zoom * ((ends[column] + (column ? ends[column - 1] : 0)) / 2 - left);
    return [x, zoom * ((row + 0.5) / data.rows.length - top)].map((share) => Math.max(0, Math.min(1, share)));
  };
  // Move the lens to the cell selected by keyboard.
  const bring = (cells) => {
    const { data, row, column, zoom, left, top } = dataOf(cells);
    if (zoom === 1) return;
    const ends = endsOf(data);
    const [begin, end] = [column ? ends[column - 1] : 0, ends[column]];
    const into = (from, to, start) => (from < start ? from : to > start + 1 / zoom ? to - 1 / zoom : start);
    look(cells, zoom, into(begin, end, left), into(row / data.rows.length, (row + 1) / data.rows.length, top));
  };

  // Announce the selected cell to screen readers; after an update, only the changes.
  const ask = (cells, row, column, heard = "") => {
    const asked = dataOf(cells);
    const { data } = asked;
    const before = [asked.row, asked.column];
    asked.row = Math.max(0, Math.min(data.rows.length - 1, row));
    asked.column = Math.max(0, Math.min(data.columns.length - 1, column));
    const figure = cells.closest(".answers");
    if (cells.classList.contains("asked") && before[0] === asked.row && before[1] === asked.column) return;
    for (const other of figure.querySelectorAll(".cells")) other.classList.toggle("asked", other === cells);
    drawMark(cells);
    const told = figure.querySelector(".said");
    told.textContent = said(data, asked.row, asked.column);
    const address = linkOf(data, asked.row, asked.column);
    if (address) {
      const link = element("a", "Compare the two");
      link.href = address;
      told.append(" ", link);
    }
    const words = told.textContent;
    if (words !== heard) window.say(words);
    held = { figure, name: figure.dataset.name, cells, words, row: data.rows[asked.row], column: data.columns[asked.column] };
  };

  const pointIn = (cells, event) => {
    const box = cells.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  const cellAt = (cells, event) => {
    const { data, zoom, left, top } = dataOf(cells);
    const [x, y] = pointIn(cells, event);
    const along = left + x / zoom;
    const column = endsOf(data).findIndex((end) => along < end);
    return [Math.floor(data.rows.length * (top + y / zoom)), column < 0 ? data.columns.length : column];
  };

  const element = (name, words) => {
    const made = document.createElement(name);
    made.textContent = words;
    return made;
  };

  // Open the comparison of a cell's two models.
  const open = (cells, event) => {
    const { data, row, column } = dataOf(cells);
    const address = linkOf(data, row, column);
    // Touch shows the text first; the link is below the figure.
    if (address && event.pointerType !== "touch") {
      if (event.ctrlKey || event.metaKey) window.open(address);
      else location.assign(address);
    }
  };

  const zoom = (figure, factor) => {
    const all = [...figure.querySelectorAll(".cells")];
    for (const cells of all.filter((each) => each.classList.contains("asked")).concat(all).slice(0, 1)) {
      if (factor) zoomAt(cells, factor, ...middle(cells));
      else look(cells, 1, 0, 0);
    }
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

  // Pressed pointers: one drags an enlarged figure, two pinch.
  const down = new Map();
  let dragged = false;
  document.addEventListener("pointerdown", (event) => {
    const cells = closest(event, ".answers .cells");
    if (!cells) return;
    down.set(event.pointerId, { cells, point: pointIn(cells, event) });
    dragged = false;
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    document.addEventListener(kind, (event) => { down.delete(event.pointerId); });
  }
  const apart = (points) => Math.hypot(points[0][0] - points[1][0], points[0][1] - points[1][1]);
  document.addEventListener("pointermove", (event) => {
    const cells = closest(event, ".answers .cells");
    const held = down.get(event.pointerId);
    if (!down.size) dragged = false;
    if (held && held.cells === cells) {
      const point = pointIn(cells, event);
      const other = [...down.values()].find((each) => each !== held && each.cells === cells);
      const { zoom: now, left, top } = dataOf(cells);
      if (other) {
        const before = apart([held.point, other.point]);
        if (before > 0) zoomAt(cells, apart([point, other.point]) / before, ...other.point);
        dragged = true;
      } else if (now > 1) {
        const moved = [point[0] - held.point[0], point[1] - held.point[1]];
        if (Math.hypot(...moved) > 0.01) dragged = true;
        look(cells, now, left - moved[0] / now, top - moved[1] / now);
      }
      held.point = point;
    }
    if (cells && !dragged) ask(cells, ...cellAt(cells, event));
  });
  // Pinching a touchpad is a wheel event with Ctrl. Without Ctrl the page scrolls, unless the figure is enlarged.
  document.addEventListener("wheel", (event) => {
    const cells = closest(event, ".answers .cells");
    if (!cells || dataOf(cells).data.merged || !(event.ctrlKey || event.metaKey || dataOf(cells).zoom > 1)) return;
    event.preventDefault();
    zoomAt(cells, event.deltaY < 0 ? 1.25 : 0.8, ...pointIn(cells, event));
  }, { passive: false });
  document.addEventListener("click", (event) => {
    const cells = closest(event, ".answers .cells");
    if (cells && !dragged) {
      ask(cells, ...cellAt(cells, event));
      open(cells, event);
    }
    const button = closest(event, ".answers .tools button");
    if (!button) return;
    const figure = button.closest(".answers");
    const what = button.dataset.do;
    if (what in FACTORS) zoom(figure, FACTORS[what]);
    else save(figure, what);
  });
  // Preserve focus, selection and unfolded parts when a growing answer is updated.
  const unfolded = new Set();
  let focused = null;
  const keyOf = (part) => part.getAttribute("aria-label") || (part.parentElement && part.parentElement.dataset.kept) || "";
  document.addEventListener("focusin", (event) => {
    focused = closest(event, "#verdict a, #verdict summary, .answers .cells");
    const cells = closest(event, ".answers .cells");
    if (cells) ask(cells, dataOf(cells).row, dataOf(cells).column);
  });
  document.addEventListener("pointerdown", (event) => {
    if (!closest(event, "#verdict, .answers")) focused = null;
  });
  document.addEventListener("toggle", (event) => {
    const key = closest(event, "details") && event.target.dataset.kept;
    if (key && event.target.isConnected) unfolded[event.target.open ? "add" : "delete"](key);
  }, true);
  const renewed = () => {
    for (const details of document.querySelectorAll("#verdict details[data-kept]")) {
      if (unfolded.has(details.dataset.kept) && !details.dataset.seen) details.open = true;
      details.dataset.seen = "yes";
    }
    if (held.cells && !held.cells.isConnected) {
      const again = document.querySelector(`.answers[data-name="${held.name}"]`);
      const cells = again && [...again.querySelectorAll(".cells")].find((each) => dataOf(each).data.rows.includes(held.row));
      if (cells) {
        const [before, { data }] = [held, dataOf(cells)];
        const { zoom: factor, left, top } = dataOf(before.cells);
        if (factor > 1) look(cells, factor, left, top);
        ask(cells, data.rows.indexOf(before.row), Math.max(0, data.columns.indexOf(before.column)), before.words);
        if (focused === before.cells && isNowhere()) cells.focus({ preventScroll: true });
      }
    }
    if (focused && !focused.isConnected && isNowhere()) {
      const key = keyOf(focused);
      const again = key && [...document.querySelectorAll("#verdict a, #verdict summary")].find((each) => keyOf(each) === key);
      if (again) again.focus({ preventScroll: true });
    }
  };
  const isNowhere = () => !document.activeElement || document.activeElement === document.body;
  const begin = () => new MutationObserver(renewed).observe(document.body, { childList: true, subtree: true });
  if (document.body) begin();
  else document.addEventListener("DOMContentLoaded", begin);
  document.addEventListener("keydown", (event) => {
    const cells = closest(event, ".answers .cells");
    if (!cells || event.ctrlKey || event.metaKey || event.altKey) return;
    const { data, row, column } = dataOf(cells);
    const moves = {
      ArrowUp: next(data, row, column, -1, 0), ArrowDown: next(data, row, column, 1, 0),
      ArrowLeft: next(data, row, column, 0, -1), ArrowRight: next(data, row, column, 0, 1),
      Home: [row, 0], End: [row, data.columns.length - 1], PageUp: [row - 10, column], PageDown: [row + 10, column],
    };
    if (moves[event.key]) ask(cells, ...moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") open(cells, event);
    else if ("+-0".includes(event.key)) zoom(cells.closest(".answers"), { "+": 2, "-": 0.5, 0: 0 }[event.key]);
    else return;
    event.preventDefault();
    if (moves[event.key]) bring(cells);
  });
})();
