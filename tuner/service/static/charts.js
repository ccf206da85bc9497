// The plots of a problem and of a device, from the data in the page.
"use strict";

(() => {
  const held = document.getElementById("charts");
  if (!held) return;
  const data = JSON.parse(held.textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = ["#3d7fd1", "#e08a1e", "#3aa675", "#c65b8a", "#8a6fd1", "#8c8c3a", "#4fb3c4", "#b0653a"];
  const words = (config) => Object.entries(config).map(([name, value]) => `${name}=${value}`).join(" ");

  const layout = (x, y, more = {}) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 60, r: 15, t: 10, b: 50 },
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 }, hovermode: "closest",
    legend: { orientation: "h", y: 1.12 }, hoverlabel: { align: "left" },
    xaxis: { title: { text: x }, gridcolor: colour("--line"), zeroline: false },
    yaxis: { title: { text: y }, gridcolor: colour("--line"), zeroline: false, rangemode: "tozero" }, ...more,
  });
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const draw = (id, traces, form) => {
    const place = document.getElementById(id);
    if (place && traces.length) Plotly.react(place, traces, form, options);
    else if (place) { place.textContent = "Nothing to show."; place.style.height = "auto"; }
  };

  const problem = () => {
    const { trials, champions, unit } = data;
    const speed = unit === "tflops" ? "TFLOPS" : "GB/s";
    const kernels = [...new Set(trials.kernel)];
    const tint = Object.fromEntries(kernels.map((name, at) => [name, palette[at % palette.length]]));

    const own = { x: champions.at, y: champions[unit], name: "champion", mode: "lines+markers",
      line: { shape: "hv", color: palette[0] },
      text: champions.at.map((_, at) => `${champions.kernel[at]}<br>${words(champions.config[at])}`),
      hovertemplate: "%{y:.4g}<br>%{text}<extra></extra>" };
    const library = { x: champions.at, y: champions[`library_${unit}`],
      name: champions.library.find(Boolean) || "library", mode: "lines+markers",
      line: { shape: "hv", color: palette[1], dash: "dot" }, hovertemplate: "%{y:.4g}<extra>library</extra>" };
    draw("champions", champions.at.length ? [own, library] : [], layout("crowned", speed));

    const every = kernels.map((name) => {
      const at = trials.at.map((_, n) => n).filter((n) => trials.kernel[n] === name && trials[unit][n]);
      return { x: at.map((n) => trials.at[n]), y: at.map((n) => trials[unit][n]), name, mode: "markers", type: "scatter",
        marker: { color: tint[name], size: at.map((n) => (trials.role[n] === "final" ? 10 : 6)), opacity: 0.75,
          symbol: at.map((n) => (trials.outcome[n] === "PRUNED" ? "circle-open" : "circle")) },
        text: at.map((n) => `${trials.role[n]}, ${trials.outcome[n]}<br>${words(trials.config[n])}`),
        hovertemplate: "%{y:.4g}<br>%{text}<extra>%{fullData.name}</extra>" };
    }).filter((trace) => trace.x.length);
    const failed = trials.at.map((_, n) => n).filter((n) => !trials.time_s[n]);
    if (failed.length) every.push({ x: failed.map((n) => trials.at[n]), y: failed.map(() => 0), name: "failed",
      mode: "markers", marker: { color: colour("--bad"), symbol: "x", size: 8 },
      text: failed.map((n) => `${trials.outcome[n]}<br>${trials.kernel[n]} ${words(trials.config[n])}<br>${trials.reason[n]}`),
      hovertemplate: "%{text}<extra></extra>" });
    draw("trials", every, layout("measured", speed));

    const exact = kernels.map((name) => {
      const at = trials.at.map((_, n) => n).filter((n) => trials.kernel[n] === name && trials.error[n] && trials[unit][n]);
      return { x: at.map((n) => trials[unit][n]), y: at.map((n) => trials.error[n]), name, mode: "markers",
        marker: { color: tint[name], size: 7, opacity: 0.75 }, text: at.map((n) => words(trials.config[n])),
        hovertemplate: "%{x:.4g}, error %{y:.3g}<br>%{text}<extra>%{fullData.name}</extra>" };
    }).filter((trace) => trace.x.length);
    const limit = data.library_error ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: data.library_error,
      y1: data.library_error, line: { color: colour("--mark"), dash: "dash" } }] : [];
    const notes = data.library_error ? [{ xref: "paper", x: 1, y: Math.log10(data.library_error), text: "library",
      showarrow: false, xanchor: "right", yanchor: "bottom" }] : [];
    const form = layout(speed, "rms error", { shapes: limit, annotations: notes });
    form.yaxis = { ...form.yaxis, type: "log", rangemode: "normal", exponentformat: "power" };
    draw("errors", exact, form);

    const kernel = document.getElementById("kernel"), parameter = document.getElementById("parameter");
    const fill = (select, names) => {
      const before = select.value;
      select.replaceChildren(...names.map((name) => new Option(name, name)));
      if (names.includes(before)) select.value = before;
    };
    const strips = () => {
      const at = trials.at.map((_, n) => n).filter((n) => trials.kernel[n] === kernel.value && trials[unit][n]);
      fill(parameter, [...new Set(at.flatMap((n) => Object.keys(trials.config[n])))]);
      const name = parameter.value;
      if (!name) { draw("parameters", [], null); return; }
      const values = [...new Set(at.map((n) => trials.config[n][name]))].sort((a, b) => (a > b ? 1 : -1)).map(String);
      const trace = { x: at.map((n) => String(trials.config[n][name])), y: at.map((n) => trials[unit][n]), type: "box",
        boxpoints: "all", jitter: 0.5, pointpos: 0, fillcolor: "rgba(0,0,0,0)", marker: { color: palette[0], size: 6 },
        line: { width: 1 }, text: at.map((n) => words(trials.config[n])), name: "",
        hovertemplate: "%{y:.4g}<br>%{text}<extra></extra>" };
      const form = layout(name, speed);
      form.xaxis = { ...form.xaxis, type: "category", categoryorder: "array", categoryarray: values };
      draw("parameters", [trace], form);
    };
    fill(kernel, kernels);
    const last = champions.kernel[champions.kernel.length - 1];
    if (!kernel.dataset.set && kernels.includes(last)) kernel.value = last;
    kernel.dataset.set = "1";
    kernel.onchange = parameter.onchange = strips;
    strips();
  };

  const device = () => {
    const { points, measured, best_seen: seen } = data;
    const operations = [...new Set(points.operation)];
    const traces = operations.map((name, number) => {
      const at = points.problem.map((_, n) => n).filter((n) => points.operation[n] === name);
      return { x: at.map((n) => points.intensity[n]), y: at.map((n) => points.tflops[n]), name, mode: "markers",
        marker: { size: 8, color: palette[number % palette.length], opacity: 0.8 },
        text: at.map((n) => `${points.problem[n]}<br>${points.kernel[n]}${points.speedup[n] ? `, ${points.speedup[n].toFixed(3)} x library` : ""}`),
        hovertemplate: "%{y:.4g} TFLOPS at %{x:.3g} flop/byte<br>%{text}<extra></extra>" };
    });
    const gbps = measured.read || measured.copy || seen.gbps, tflops = measured.multiply_add || seen.tflops;
    if (gbps && tflops) {
      const low = Math.min(...points.intensity) / 2, high = Math.max(...points.intensity, (2e3 * tflops) / gbps) * 2;
      const ridge = (tflops * 1e3) / gbps;
      traces.unshift({ x: [low, ridge, high], y: [(low * gbps) / 1e3, tflops, tflops], mode: "lines",
        name: measured.multiply_add || measured.read ? "measured limits" : "best seen here",
        line: { color: colour("--mark"), dash: measured.multiply_add && measured.read ? "solid" : "dash" },
        hovertemplate: `${gbps.toPrecision(4)} GB/s, ${tflops.toPrecision(4)} TFLOPS<extra></extra>` });
    }
    const form = layout("flop per byte", "TFLOPS");
    form.xaxis.type = form.yaxis.type = "log";
    form.yaxis.rangemode = "normal";
    form.yaxis.exponentformat = form.xaxis.exponentformat = "power";
    draw("roofline", traces, form);
  };

  const all = () => (data.points ? device() : problem());
  all();
  dark.addEventListener("change", all);
  document.body.dataset.drawn = "1";
})();
