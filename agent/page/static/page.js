// Draws the charts in the page's own colours and, on the live page, asks for what has changed.
"use strict";

const body = document.body;
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 40rem)");
const EVERY_MS = 2000;
let figures = {};
let etag = null;
let paused = false;

function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), linecolor: colour("--dim"), automargin: true };
  return {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), size: narrow.matches ? 11 : 13, family: "system-ui, sans-serif" },
    hoverlabel: { bgcolor: colour("--panel"), font: { color: colour("--text") } },
    xaxis: { ...layout.xaxis, ...axis },
    yaxis: { ...layout.yaxis, ...axis },
  };
}

function draw() {
  for (const place of document.querySelectorAll("[data-chart]")) {
    const figure = figures[place.dataset.chart];
    if (figure && window.Plotly) {
      Plotly.react(place, figure.data, themed(figure.layout), { displayModeBar: false, responsive: true });
    }
  }
  body.dataset.drawn = "true";
}

// Only what differs is put in, so that focus, scrolling, open details and charts stay as they are.
const shown = new Map();
function show(state) {
  document.title = state.title;
  for (const [name, html] of Object.entries(state.sections)) {
    const place = document.getElementById(name);
    if (!place || shown.get(name) === html) continue;
    shown.set(name, html);
    const open = [...place.querySelectorAll("details[open]")].map((item) => item.id);
    const charts = new Map([...place.querySelectorAll("[data-chart]")].map((item) => [item.id, item]));
    const focused = place.contains(document.activeElement) ? document.activeElement : null;
    const focus = focused && [...place.querySelectorAll("summary,[tabindex]")].indexOf(focused);
    const scrolled = [...place.querySelectorAll(".scroll")].map((item) => item.scrollLeft);
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    for (const item of fresh.content.querySelectorAll("[data-chart]")) {
      if (charts.has(item.id)) item.replaceWith(charts.get(item.id));
    }
    place.replaceChildren(fresh.content);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    place.querySelectorAll(".scroll").forEach((item, at) => { item.scrollLeft = scrolled[at] ?? 0; });
    if (focused && focus >= 0) place.querySelectorAll("summary,[tabindex]")[focus]?.focus({ preventScroll: true });
  }
  figures = state.figures;
  draw();
}

async function update() {
  if (paused || document.hidden) return;
  const fresh = document.getElementById("fresh");
  try {
    const answer = await fetch(body.dataset.live, { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store" });
    if (answer.status === 200) {
      etag = answer.headers.get("etag");
      show(await answer.json());
    } else if (answer.status !== 304) throw new Error(`the agent answers ${answer.status}`);
    fresh.textContent = `updated ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    fresh.textContent = `not up to date: ${error.message}. The run may have ended; see report.html in its directory.`;
  }
}

dark.addEventListener("change", draw);
narrow.addEventListener("change", draw);
if (body.dataset.live) {
  const pause = document.getElementById("pause");
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume updates" : "Pause updates";
    update();
  });
  document.addEventListener("visibilitychange", update);
  (async function again() {
    await update();
    setTimeout(again, EVERY_MS);
  })();
} else {
  figures = JSON.parse(document.getElementById("figures").textContent);
  draw();
}
