"use strict";
// Draws the figures when they come into view, in the colours of the theme, and the part of the traces in view.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const hidden = new Set();
  const drawn = new Set();
  const narrow = window.matchMedia("(max-width: 600px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Plotly's own bar would offer to send a figure to its makers.
  const options = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    // On a narrow page it would cover the figure; a drag zooms, and a double tap shows all.
    displayModeBar: narrow.matches ? false : "hover",
  };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The layout of a figure with the colours of the theme; `layout` stays as it is.
  function themed(layout) {
    const text = css("--text"), line = css("--line");
    const full = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, size: narrow.matches ? 11 : 13 },
      // Room above the figure for Plotly's bar; a legend above it makes its own.
      margin: { l: narrow.matches ? 50 : 70, r: 10, t: narrow.matches ? 10 : 34, b: 50 },
      hoverlabel: { bgcolor: css("--panel"), font: { color: text } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: text },
      legend: narrow.matches ? { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } : {},
      colorway: ["#6b7fd7", "#c2853d", "#3d9e78", "#b3668f", "#8a8a8a"], ...layout,
    };
    for (const key of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      full[key] = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ...layout[key] };
      // Away from the labels of the ticks, however long they are.
      if (full[key].title) full[key].title = { standoff: 10, ...full[key].title };
    }
    for (const shape of full.shapes || []) if (shape.line && !shape.line.color) shape.line.color = text;
    return full;
  }

  // A trace in the colours of the theme; the legend of a narrow page leaves out the keypoints, which have their boxes.
  function shownTrace(trace) {
    const isKeypoint = Number.isInteger(trace.meta);
    const shown = { ...trace, visible: !(isKeypoint && hidden.has(trace.meta)) };
    if (isKeypoint && narrow.matches) shown.showlegend = false;
    if (trace.error_x) shown.error_x = { ...trace.error_x, color: css("--soft"), thickness: 1.5 };
    return shown;
  }

  function draw(id) {
    const element = document.getElementById(id);
    if (id === "traces") return drawTraces();
    const figure = content.figures[id];
    return Plotly.react(element, figure.data.map(shownTrace), themed(figure.layout), options);
  }

  // Traces ------------------------------------------------------------------------------------------------------------

  let video = null;
  let range = null;

  function decode(text) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Float32Array.from({ length: bytes.length / 4 }, (_, place) => view.getFloat32(4 * place, true));
  }

  function choose(place) {
    const given = content.videos[place];
    video = { ...given, series: given.series.map((one) => ({ title: one.title, values: decode(one.values) })) };
    range = null;
  }

  // The points [first, end) of a series, thinned to the smallest and the largest of each of `count` blocks.
  function thin(values, first, end, count, step) {
    const block = Math.ceil((end - first) / count);
    const x = [], y = [];
    if (block <= 2) {
      for (let place = first; place < end; place++) { x.push(place * step); y.push(values[place]); }
      return { x, y };
    }
    for (let start = first - (first % block); start < end; start += block) {
      let low = -1, high = -1;
      for (let place = Math.max(start, first); place < Math.min(start + block, end); place++) {
        if (Number.isNaN(values[place])) continue;
        if (low < 0 || values[place] < values[low]) low = place;
        if (high < 0 || values[place] > values[high]) high = place;
      }
      const pair = low < 0 ? [start] : low === high ? [low] : [Math.min(low, high), Math.max(low, high)];
      for (const place of pair) { x.push(place * step); y.push(values[place]); }
    }
    return { x, y };
  }

  function drawTraces() {
    const element = document.getElementById("traces");
    if (!element || !content.videos.length) return null;
    if (!video) choose(0);
    const step = video.block === 1 ? 1 : video.block / 2;
    const points = video.series[0].values.length / content.names.length;
    const [left, right] = range || [0, video.frames - 1];
    const first = Math.max(0, Math.floor(left / step) - 1), end = Math.min(points, Math.ceil(right / step) + 2);
    const blocks = Math.max(200, Math.min(800, element.clientWidth));
    const data = [];
    // The shares of the height that a series has, and that its panel takes of it; the rest is below the panel.
    const share = 1 / video.series.length, panel = 0.88;
    const layout = {
      showlegend: false, hovermode: "closest", uirevision: video.name,
      xaxis: { title: { text: "frame" }, anchor: `y${video.series.length}`, range: [left, right] },
      shapes: video.segments.map(([begin, last]) => ({
        type: "rect", x0: begin - 0.5, x1: last + 0.5, y0: (1 - panel) * share, y1: 1, yref: "paper", layer: "below",
        line: { width: 0 }, fillcolor: css("--mark"),
      })),
    };
    video.series.forEach((series, row) => {
      const axis = row ? String(row + 1) : "";
      const top = 1 - row * share;
      layout[`yaxis${axis}`] = { title: { text: series.title }, domain: [top - panel * share, top] };
      content.names.forEach((name, keypoint) => {
        const values = series.values.subarray(keypoint * points, (keypoint + 1) * points);
        data.push(shownTrace({
          ...thin(values, first, end, blocks, step), name, meta: keypoint, yaxis: `y${axis}`, type: "scatter",
          mode: end - first < 60 ? "lines+markers" : "lines", line: { width: 1, color: content.colours[keypoint] },
          hovertemplate: "frame %{x:,}: %{y:.2f}<extra>%{fullData.name}</extra>",
        }));
      });
    });
    const each = Math.ceil((end - first) / blocks);
    const shown = `Frames ${Math.max(0, Math.round(left)).toLocaleString("en")} to ` +
      `${Math.min(video.frames - 1, Math.round(right)).toLocaleString("en")} of ${video.frames.toLocaleString("en")}. `;
    const kept = each > 2 || video.block > 1;
    document.getElementById("shown").textContent = shown + (kept
      ? `The smallest and the largest value of every ${Math.round((each > 2 ? each : 2) * step).toLocaleString("en")} frames ` +
        "are drawn" + (each > 2 ? "; a closer view draws more." : ", all that the page holds.")
      : "Every frame is drawn.");
    return Plotly.react(element, data, themed(layout), options).then(() => {
      if (element.dataset.bound) return;
      element.dataset.bound = "yes";
      element.on("plotly_relayout", (change) => {
        // A zoom, a reset and a double click name the new range in different ways; the layout has it.
        if (!Object.keys(change).some((key) => key.startsWith("xaxis."))) return;
        range = [...element.layout.xaxis.range];
        drawTraces();
      });
    });
  }

  // Switches ----------------------------------------------------------------------------------------------------------

  const boxes = [...document.querySelectorAll("input[data-keypoint]")];

  function switched() {
    hidden.clear();
    boxes.forEach((box, place) => {
      if (!box.checked) hidden.add(place);
      document.body.classList.toggle(`hide-${place}`, !box.checked);
    });
    drawn.forEach(draw);
  }

  boxes.forEach((box) => box.addEventListener("change", switched));
  for (const [id, value] of [["all", true], ["none", false]]) {
    document.getElementById(id)?.addEventListener("click", () => { boxes.forEach((box) => { box.checked = value; }); switched(); });
  }
  const chooser = document.getElementById("video");
  if (chooser) chooser.addEventListener("change", () => { choose(Number(chooser.value)); drawTraces(); });

  const redraw = () => drawn.forEach(draw);
  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      drawn.add(entry.target.id);
      draw(entry.target.id);
    }
  }, { rootMargin: "600px" });
  document.querySelectorAll(".plot").forEach((element) => watcher.observe(element));
})();
