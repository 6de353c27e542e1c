(() => {
  "use strict";
  // A permanent live region for screen readers; gradio replaces the elements of its own.
  const say = (words) => {
    let region = document.getElementById("said");
    if (!region) {
      region = document.createElement("div");
      region.id = "said";
      region.className = "unseen";
      region.setAttribute("role", "status");
      region.setAttribute("aria-live", "polite");
      document.body.append(region);
    }
    if (region.textContent !== words) region.textContent = words;
  };
  window.say = say;

  const copied = async (button) => {
    const field = button.dataset.from && document.getElementById(button.dataset.from);
    const words = field ? field.value : button.closest(".copyable").querySelector("code").textContent;
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(words);
    } catch {
      // Pages inside a frame may lack the permission. The refusal can come late, when the visitor is already elsewhere.
      const focused = document.activeElement;
      if (field) field.select();
      else getSelection().selectAllChildren(button.closest(".copyable").querySelector("code"));
      isCopied = document.execCommand("copy");
      if (isCopied) focused.focus({ preventScroll: true });
    }
    button.textContent = isCopied ? "Copied" : "Selected";
    say(isCopied ? "Copied" : "Selected; press Ctrl+C or Command+C to copy");
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (button) copied(button);
  });

  // Buttons inside the HTML of an answer press an unseen button of the page.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-press]");
    if (!button) return;
    button.disabled = true;
    document.getElementById(button.dataset.press).click();
  });

  // Return to the requested comparison after signing in; gradio's own redirect loses all but the first field.
  document.addEventListener("click", (event) => {
    const button = event.target.closest("#sign-in");
    if (!button || !button.textContent.includes("Sign in")) return;
    event.stopImmediatePropagation();
    location.assign(`/login/huggingface?_target_url=${encodeURIComponent(location.pathname + location.search)}`);
  }, true);

  const connect = () => {
    for (const button of document.querySelectorAll("button.pressed:not([aria-hidden]), .pressed button:not([aria-hidden])")) {
      button.tabIndex = -1;
      button.setAttribute("aria-hidden", "true");
    }
    // Show the server's suggestions while the visitor types.
    for (const id of ["model-a", "model-b"]) {
      const input = document.querySelector(`#${id} input, #${id} textarea`);
      if (input && input.getAttribute("list") !== `${id}-names`) {
        input.setAttribute("list", `${id}-names`);
        for (const [name, value] of [["autocomplete", "off"], ["autocapitalize", "off"], ["spellcheck", "false"]]) {
          input.setAttribute(name, value);
        }
      }
    }
    if (navigator.userAgent.includes("Chrome/")) return; // Chrome shows the label beside the name, other browsers instead of it
    for (const option of document.querySelectorAll("#page datalist option:not([data-named])")) {
      option.dataset.named = "";
      if (option.label) option.label = `${option.value} · ${option.label}`;
    }
  };

  // A plan is shown only while the fields contain its question, whichever way they were filled.
  const DEFAULT_ALPHA = "1e-10";
  const fields = () => ["a", "b"].map((name) => document.querySelector(`#model-${name} input, #model-${name} textarea`));
  const question = () => {
    const [level, alpha] = ["#level input:checked", "#alpha input, #alpha textarea"].map((at) => document.querySelector(at));
    const names = fields().map((input) => (input ? input.value.trim() : ""));
    return [...names, level ? level.value : "auto", alpha ? alpha.value.trim() : DEFAULT_ALPHA];
  };
  const hidePlan = () => {
    const now = question();
    for (const plan of document.querySelectorAll("#plan .plan[data-asked]")) {
      plan.hidden = JSON.parse(plan.dataset.asked).some((value, at) => value !== now[at]);
    }
  };
  for (const kind of ["input", "change"]) document.addEventListener(kind, hidePlan);

  // In a slow browser, an update sent before the stop may arrive after it and show Cancel again; then stop again.
  let [isOver, stopped] = [false, null];
  const begun = (event) => {
    const asks = event.type === "keydown" ? event.key === "Enter" && "#models" : "#compare, #examples button, #open-link";
    if (asks && event.target.closest(asks)) isOver = false;
  };
  for (const kind of ["click", "keydown"]) document.addEventListener(kind, begun, true);
  const staysOver = () => {
    const words = document.querySelector("#status .stopped");
    if (words && words !== stopped) [stopped, isOver] = [words, true];
    const button = document.querySelector("button#cancel, #cancel button");
    if (!isOver || !button || !document.querySelector("#status .progress")) return;
    isOver = false;
    button.click();
  };

  let shown = "";
  let told = "";
  let alerted = "";
  const changed = () => {
    connect();
    open();
    takeOver();
    staysOver();
    hidePlan();
    const progress = document.querySelector("#status [data-say]");
    const words = document.querySelector("#page #verdict-words");
    const isInterim = words && words.closest(".interim") && !document.querySelector("#status .stopped");
    const verdict = words && !isInterim ? words.closest(".verdict") : null;
    const telling = progress ? progress.dataset.say : "";
    if (telling && telling !== told) say(telling);
    told = telling;
    const now = verdict ? verdict.querySelector(".pair").textContent + words.textContent : "";
    if (verdict && now !== shown) {
      say(words.textContent);
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (verdict.getBoundingClientRect().top > innerHeight * 0.6) {
        verdict.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
      }
    }
    shown = now;
    const alert = document.querySelector("#alert [role]");
    const warned = alert ? alert.textContent : "";
    if (warned && warned !== alerted && alert.getBoundingClientRect().top > innerHeight * 0.8) {
      alert.scrollIntoView({ block: "center" });
    }
    alerted = warned;
    openTab();
    follow();
  };

  // The URL names the current result, and Back shows the previous one. The Hub's frame has a URL of its own.
  const same = (one, other) => {
    const sorted = (query) => { const fields = new URLSearchParams(query); fields.sort(); return fields.toString(); };
    return sorted(one) === sorted(other);
  };
  let [followed, followedMark] = ["", null];
  const follow = () => {
    const mark = document.getElementById("address");
    const query = mark ? mark.dataset.query : "";
    if (!query || (query === followed && mark === followedMark)) return;
    [followed, followedMark] = [query, mark];
    const current = new URLSearchParams(location.search);
    current.delete("v");
    if (location.search === atClick) history.replaceState(null, "", `?${query}`);
    else if (!same(current, query)) history.pushState(null, "", `?${query}`);
    atClick = "";
    if (window.parent !== window) window.parent.postMessage({ queryString: query }, "https://huggingface.co");
  };
  addEventListener("popstate", () => location.reload());

  // The action of the button for the text in the fields; the server splits names in the same way.
  const LONGEST_LIST = 8000;
  const JOINING = new Set(["vs", "vs.", "versus", "and", "&", "-", "*", "•", "+"]);
  const namesIn = (text, mayBeLocal) => {
    const whole = (text || "").trim();
    if (whole.length > LONGEST_LIST || (mayBeLocal && /^[/~.]/.test(whole))) return [whole];
    const pieces = whole.split(/[\s,;|]+/).filter((piece) => piece && !JOINING.has(piece.toLowerCase()));
    const areNames = pieces.every((piece) => /^[\w.@:/%?=&#~-]+$/.test(piece));
    if (!areNames || (pieces.length > 2 && !pieces.every((piece) => piece.includes("/")))) return [whole];
    return [...new Set(pieces)];
  };
  const isCollection = (name) => {
    if (!name.includes("/collections/")) return /^[^/\s]+\/[^/\s]+-[0-9a-f]{24}$/.test(name);
    try {
      return new URL(name.includes("://") ? name : `https://${name}`).pathname.startsWith("/collections/");
    } catch {
      return false;
    }
  };
  window.buttonLabel = (first, second, mayBeLocal) => {
    setTimeout(hidePlan); // the fields have their new content after this
    const names = [...namesIn(first, mayBeLocal), ...namesIn(second, mayBeLocal)];
    if (names.length === 1) return isCollection(names[0]) ? "Survey this collection" : "Find its family";
    return names.length < 3 ? "Compare" : `Survey ${names.length} models`;
  };

  const fill = (input, value) => {
    input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  };

  // A model of the demo goes into the first empty field, or into the second if both are filled.
  document.addEventListener("click", (event) => {
    const named = event.target.closest("button.named");
    if (!named) return;
    const [first, second] = fields();
    const input = first.value.trim() ? second : first;
    fill(input, named.dataset.name);
    input.focus();
    say(`${named.dataset.name} stands in the field.`);
  });

  // Tables of pairs: a click on a heading sorts, a word in the field filters.
  const number = (text) => parseFloat(text.replace(/[\u2212]/g, "-").replace(/,/g, "").replace(/^[^\d-]*log10 p /, ""));
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".sortable button.sort");
    if (!button) return;
    const heading = button.closest("th");
    const body = heading.closest("table").tBodies[0];
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const cell = (row) => row.children[heading.cellIndex].textContent.trim();
    const order = (one, other) => {
      const [a, b] = [number(one), number(other)];
      return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b;
    };
    const rows = [...body.rows].sort((one, other) => order(cell(one), cell(other)) * (descending ? -1 : 1));
    body.append(...rows);
  });
  document.addEventListener("input", (event) => {
    if (event.target.id !== "pair-filter") return;
    const wanted = event.target.value.trim().toLowerCase();
    for (const row of document.querySelectorAll(".sortable tbody tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });

  // Put the question in the URL on the click, so that a reload asks it again.
  let atClick = "";
  const toAddress = () => {
    const query = new URLSearchParams();
    const [first, second, level, alpha] = question();
    if (!first && !second) return;
    if (first) query.set("a", first);
    if (second) query.set("b", second);
    if (level !== "auto") query.set("level", level);
    if (alpha && alpha !== DEFAULT_ALPHA) query.set("alpha", alpha);
    // In the server's notation. The mark of the previous result is still there and has been handled.
    atClick = `?${query.toString().replaceAll("%2F", "/").replaceAll("%40", "@").replaceAll("%3A", ":")}`;
    if (!same(location.search, query)) history.pushState(null, "", atClick);
  };
  document.addEventListener("click", (event) => { if (event.target.closest("#compare")) toAddress(); }, true);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.closest("#models")) toAddress();
  }, true);

  // A chosen name replaces the ambiguous one.
  document.addEventListener("click", (event) => {
    const choice = event.target.closest("button.choice");
    if (!choice) return;
    const inputs = fields();
    const asked = choice.dataset.inPlaceOf;
    const name = choice.textContent;
    const input = inputs.find((each) => each.value.trim() === asked) ||
      inputs.find((each) => each.value.includes(asked)) || inputs[0];
    fill(input, input.value.includes(asked) && input.value.trim().includes(" ")
      ? input.value.replace(asked, () => name) : name);
    input.focus();
    say(`${name} stands in the field.`);
  });

  // The tab of the decisive evidence opens once for each result; after that, the visitor's choice is kept.
  // The tabs are rebuilt for each result, and the old ones are still there when its mark arrives.
  let [openedIn, openedFor] = [null, ""];
  const openTab = () => {
    const mark = document.getElementById("address");
    const tab = mark && mark.dataset.tab && document.querySelector(`#details button[data-tab-id="${mark.dataset.tab}"]`);
    if (!tab || (tab.parentElement === openedIn && mark.dataset.query === openedFor)) return;
    [openedIn, openedFor] = [tab.parentElement, mark.dataset.query];
    tab.click();
  };

  // Remove the server's first paint as soon as the page shows as much.
  const takeOver = () => {
    const written = document.getElementById("first-paint");
    if (!written || !document.getElementById("open-link")) return;
    const isShown = document.querySelector("#page #verdict-words, #page #alert [role]");
    if (written.dataset.holds === "question" || isShown) written.remove();
  };

  // Open the link once its button exists; a page without the button asks no question.
  let opened = false;
  const open = () => {
    const button = document.getElementById("open-link");
    if (opened || !button) return;
    opened = true;
    button.tabIndex = -1;
    button.setAttribute("aria-hidden", "true");
    const asked = new URLSearchParams(location.search);
    if (["a", "b", "example"].some((name) => asked.get(name))) button.click();
  };
  const watch = () => {
    new MutationObserver(changed).observe(document.body, {
      childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-say", "data-query"],
    });
    changed();
  };
  if (document.body) watch();
  else document.addEventListener("DOMContentLoaded", watch);
})();
