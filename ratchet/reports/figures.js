"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const hidden = new Set();

// Between two colours of the page: 0 is the first, 1 the second.
function between(first, second, share) {
  const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const [one, two] = [parts(first), parts(second)];
  return "rgb(" + one.map((part, k) => Math.round(part + share * (two[k] - part))).join(",") + ")";
}

function colored(trace) {
  const own = "shade" in trace.meta ? between(color("--c0"), color("--c1"), trace.meta.shade) : color("--c" + (trace.meta.color % 8));
  const result = Object.assign({}, trace, { visible: !hidden.has(trace), marker: Object.assign({}, trace.marker, { color: own }) });
  if (trace.line) result.line = Object.assign({}, trace.line, { color: own });
  if (trace.fill) result.fillcolor = own + "33";
  for (const bars of ["error_x", "error_y"]) if (trace[bars]) result[bars] = Object.assign({}, trace[bars], { color: own });
  return result;
}

function layoutOf(figure) {
  const axis = { gridcolor: color("--grid"), linecolor: color("--faint"), zerolinecolor: color("--faint"), tickfont: { size: 12 }, automargin: true, title: { font: { size: 12 }, standoff: 8 } };
  const merged = (own) => { const result = Object.assign({}, axis, own); result.title = Object.assign({}, axis.title, own.title); return result; };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: color("--soft") },
    margin: { l: 52, r: 12, t: 8, b: 44 }, hovermode: "closest",
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--faint"), font: { color: color("--ink") } },
  };
  const shapes = (figure.layout.shapes || []).map((shape) => Object.assign({}, shape, { line: Object.assign({}, shape.line, { color: color("--soft") }) }));
  const annotations = (figure.layout.annotations || []).map((note) => Object.assign({ bgcolor: color("--page"), borderpad: 1 }, note));
  return Object.assign(base, figure.layout, { showlegend: false, shapes, annotations, xaxis: merged(figure.layout.xaxis), yaxis: merged(figure.layout.yaxis) });
}

// Above the plot, which plotly's own legend would squeeze: a button for each name, pressed while its traces are drawn.
function legendOf(figure) {
  const legend = document.createElement("div");
  legend.className = "legend";
  const named = figure.data.filter((trace) => trace.name && trace.showlegend !== false);
  if (figure.layout.showlegend === false || named.length < 2) return legend;
  for (const trace of named) {
    const button = document.createElement("button"), sample = document.createElement("i");
    const mine = figure.data.filter((one) => one === trace || one.meta.of === trace.name);
    Object.assign(button, { type: "button", ariaPressed: "true" });
    sample.style.color = `var(--c${trace.meta.color % 8})`;
    sample.className = trace.line ? (trace.line.dash || "solid") : "points";
    button.append(sample, trace.name);
    button.addEventListener("click", () => {
      const hides = button.ariaPressed === "true";
      mine.forEach((one) => hides ? hidden.add(one) : hidden.delete(one));
      button.ariaPressed = String(!hides);
      draw(figure);
    });
    legend.append(button);
  }
  return legend;
}

function draw(figure) {
  const place = document.getElementById(figure.id);
  if (place.closest("details:not([open])")) return; // in a closed part of the page; drawn when it opens
  if (!place.previousElementSibling.matches(".legend")) place.before(legendOf(figure));
  Plotly.react(place, figure.data.map(colored), layoutOf(figure), { responsive: true, displaylogo: false, displayModeBar: false });
}

const drawAll = () => figures.forEach(draw);
if (typeof Plotly === "undefined") {
  const note = "Not drawn: plotly.js is missing in the folder above this page. To move a page, build it with `ratchet report RUN --standalone`.";
  for (const figure of figures) document.getElementById(figure.id).textContent = note;
} else {
  if (matchMedia("(max-width: 640px)").matches) document.querySelectorAll("section").forEach((section) => section.querySelectorAll(".family ~ .family").forEach((part) => part.open = false));
  drawAll();
  document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", drawAll));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}
