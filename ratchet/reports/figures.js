"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function colored(trace) {
  const own = color("--c" + (trace.meta.color % 8));
  const result = Object.assign({}, trace, { marker: Object.assign({}, trace.marker, { color: own }) });
  if (trace.line) result.line = Object.assign({}, trace.line, { color: own });
  if (trace.fill) result.fillcolor = own + "33";
  if (trace.error_y) result.error_y = Object.assign({}, trace.error_y, { color: own });
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
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
  };
  const shapes = (figure.layout.shapes || []).map((shape) => Object.assign({}, shape, { line: Object.assign({}, shape.line, { color: color("--soft") }) }));
  return Object.assign(base, figure.layout, { shapes, xaxis: merged(figure.layout.xaxis), yaxis: merged(figure.layout.yaxis) });
}

function draw(figure) {
  const place = document.getElementById(figure.id);
  if (place.closest("details:not([open])")) return; // in a closed part of the page; drawn when it opens
  Plotly.react(place, figure.data.map(colored), layoutOf(figure), { responsive: true, displaylogo: false, displayModeBar: false });
}

const drawAll = () => figures.forEach(draw);
drawAll();
document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", drawAll));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
