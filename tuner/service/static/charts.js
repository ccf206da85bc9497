// The figures of a page, which the report has made, in the colours of the page.
"use strict";

(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const options = { responsive: true, displaylogo: false, showSendToCloud: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d"] };

  const draw = () => {
    const held = document.getElementById("figures");
    if (!held) return;
    const figures = JSON.parse(held.textContent);
    for (const { name, data, layout } of figures) {
      const dressed = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { ...layout.font, color: colour("--text") } };
      for (const axis of Object.keys(layout).filter((key) => /^[xy]axis[0-9]*$/.test(key))) {
        dressed[axis] = { ...layout[axis], gridcolor: colour("--line"), zerolinecolor: colour("--line") };
      }
      document.getElementById(name).style.height = `${layout.height}px`;
      Plotly.react(name, data, dressed, options);
    }
    document.body.dataset.drawn = "1";
  };

  draw();
  document.addEventListener("figures", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
