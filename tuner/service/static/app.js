// What pages do beyond plain HTML: follow jobs as they happen, and copy commands.
"use strict";

(() => {
  const root = document.body.dataset.root;

  const duration = (s) => {
    if (s === null || s === undefined) return "-";
    for (const [unit, scale] of [["s", 1], ["ms", 1e3], ["us", 1e6]]) {
      if (s * scale >= 1) return `${(s * scale).toPrecision(3)} ${unit}`;
    }
    return `${(s * 1e9).toPrecision(3)} ns`;
  };
  const shown = { best_s: duration, library_s: duration, left_s: (s) => (s === null ? "-" : `${Math.round(s)} s`) };

  const bind = (scope, told) => {
    for (const each of scope.querySelectorAll("[data-bind]")) {
      const name = each.dataset.bind;
      if (!(name in told)) continue;
      const text = shown[name] ? shown[name](told[name]) : String(told[name] ?? "-");
      if (each.textContent !== text) each.textContent = text;
    }
  };

  // The workers of a fleet, as they are now.
  const fleet = (told) => {
    const place = document.querySelector("#fleet");
    if (!told.fleet) return;
    if (!place) { if (document.querySelector("#live")) location.reload(); return; }
    bind(place, told.fleet);
    const rows = told.fleet.workers.map((each) => {
      const row = document.createElement("tr");
      const cells = [each.name, each.device || "-", each.doing, Math.round(each.trials_per_minute), each.slices,
        each.best_s ? duration(each.best_s) : "-"];
      cells.forEach((text, at) => {
        const cell = row.insertCell();
        cell.textContent = String(text);
        if (at > 2) cell.className = "n";
      });
      return row;
    });
    place.querySelector("tbody").replaceChildren(...rows);
  };

  // The figures of a job's page, made anew by the server.
  let best = null;
  const plots = async (told) => {
    const place = document.querySelector("#plots");
    if (!place || !told.best_s || told.best_s === best) return;
    best = told.best_s;
    const text = await (await fetch(location.href)).text();
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("#plots");
    const held = place.querySelector("#figures"), now = fresh.querySelector("#figures");
    if (held && now) held.textContent = now.textContent;
    else place.replaceChildren(...fresh.childNodes);
    document.dispatchEvent(new Event("figures"));
  };

  for (const each of document.querySelectorAll("[data-job]")) {
    const scope = each.id === "live" ? document : each;
    const known = each.querySelector(".state")?.textContent;
    const source = new EventSource(`${root}/v1/jobs/${each.dataset.job}/events`);
    source.addEventListener("progress", (event) => {
      const told = JSON.parse(event.data);
      const place = each.querySelector(".progress .dim, td.progress .dim");
      if (place) location.reload();
      bind(scope, told);
      fleet(told);
      plots(told);
    });
    source.addEventListener("state", (event) => {
      const state = JSON.parse(event.data).state;
      const past = ["queued", "running"].indexOf(state);
      const ended = ["done", "failed", "cancelled"].includes(state);
      if (ended) source.close();
      if (state !== known && (ended || state === "stopping" || (past === 1 && known === "queued"))) location.reload();
    });
    window.addEventListener("pagehide", () => source.close());
  }

  // Over plain http a browser has no clipboard: what is selected is copied.
  const copied = (text) => {
    const place = document.body.appendChild(document.createElement("textarea"));
    place.value = text;
    place.select();
    document.execCommand("copy");
    place.remove();
  };

  for (const each of document.querySelectorAll("[data-copy]")) {
    each.addEventListener("click", async () => {
      if (navigator.clipboard) await navigator.clipboard.writeText(each.dataset.copy);
      else copied(each.dataset.copy);
      each.textContent = "Copied";
    });
  }
})();
