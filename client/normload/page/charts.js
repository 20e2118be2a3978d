'use strict';
// What the report's page is drawn with: text, scales, charts. It knows nothing of the report.

// ---- Small things.

const SVG = 'http://www.w3.org/2000/svg';
function element(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === 'colour') node.style.setProperty('--colour', value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}
function shape(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
const colour = index => `var(--c${index})`;
function round(value, digits = 3) {
  if (value === 0) return '0';
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString('en', {maximumFractionDigits: Math.min(places, 6), minimumFractionDigits: 0});
}
function time(us) {
  if (us >= 1e6) return `${round(us / 1e6)} s`;
  return us >= 1000 ? `${round(us / 1000)} ms` : `${round(us)} µs`;
}
const amount = value => round(value, Math.max(3, Math.ceil(Math.log10(Math.abs(value) + 1))));
const share = value => `${value < 0.001 && value > 0 ? '< 0.1' : (100 * value).toFixed(1)} %`;
function short(value) {
  return value >= 1e6 ? `${round(value / 1e6)} M` : value >= 1e4 ? `${round(value / 1e3)} k` : round(value);
}

// ---- Scales and axes.

function linear(low, high, tight) {
  const raw = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(n => n * power).find(n => n >= raw);
  const end = tight ? high : Math.ceil(high / step - 1e-9) * step, ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= end * (1 + 1e-9); t += step) ticks.push(t);
  return {ticks, at: value => (value - low) / ((end - low) || 1)};
}
// Whole or fractional powers of ten, with 2 and 5 between them where there is room.
function logarithmic(low, high, most = 8) {
  const begin = Math.floor(Math.log10(low)), end = Math.ceil(Math.log10(high));
  let ticks = [];
  for (let power = begin; power <= end; ++power) for (const n of [1, 2, 5]) ticks.push(n * 10 ** power);
  const first = ticks.filter(t => t <= low * 1.0001).pop() ?? ticks[0];
  const last = ticks.find(t => t >= high * 0.9999) ?? ticks[ticks.length - 1];
  ticks = ticks.filter(t => t >= first && t <= last);
  const span = Math.log10(last / first) || 1;
  const at = value => Math.log10(Math.max(value, first) / first) / span;
  if (ticks.length > most) ticks = ticks.filter(t => Math.abs(Math.log10(t) % 1) < 1e-9 || t === first);
  return {ticks, at, low: first};
}
// Each nine has the same width.
function nines(highest) {
  const depth = percent => percent >= 100 ? Infinity : -Math.log10(1 - percent / 100);
  const end = depth(highest);
  return {ticks: [0, 50, 90, 99, 99.9, 99.99, 99.999, 99.9999].filter(t => t <= highest),
          at: percent => Math.min(1, depth(percent) / end)};
}

// ---- Charts.

const tooltip = document.getElementById('tooltip');
function showTooltip(event, title, rows) {
  tooltip.replaceChildren(element('b', {}, title), ...rows.map(([tint, text]) => {
    const mark = element('i', {});
    mark.style.background = tint;
    return element('div', {}, mark, text);
  }));
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, event.clientY - box.height - 10)}px`;
}

// Where the limit's name covers the fewest points of the curves: above or below its line, at either
// end or between them.
function freePlace(spec, x, y, box) {
  let best = null;
  for (const up of [true, false]) for (const anchor of ['start', 'middle', 'end']) {
    const from = anchor === 'start' ? box.left + 6 : anchor === 'end' ? box.right - 6 - box.width :
        (box.left + box.right - box.width) / 2;
    const low = up ? box.at - 18 : box.at + 2;
    const covers = ([px, py]) => x(px) > from - 8 && x(px) < from + box.width + 8 && y(py) > low - 4 && y(py) < low + 20;
    const covered = spec.series.reduce((sum, s) => sum + dense(s.points).filter(covers).length, 0);
    const at = {start: from, middle: from + box.width / 2, end: from + box.width}[anchor];
    if (!best || covered < best.covered) best = {covered, x: at, y: up ? box.at - 6 : box.at + 15, 'text-anchor': anchor};
  }
  delete best.covered;
  return best;
}
// The points, and some between each two of them.
function dense(points) {
  return points.flatMap(([px, py], i) => i === 0 ? [[px, py]] : [0.25, 0.5, 0.75, 1].map(
      t => [points[i - 1][0] * (1 - t) + px * t, points[i - 1][1] * (1 - t) + py * t]));
}

// A chart: lines over a common x. series: {name, tint, points: [[x, y]...]}; limit: {y, name}.
function chart(card, spec) {
  const svg = shape('svg', {role: 'img', 'aria-label': spec.title});
  card.append(svg);
  const draw = () => {
    const width = svg.clientWidth || 560, height = spec.height || 260;
    const left = 62, right = 14, top = 20, bottom = 42;
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.setAttribute('height', height);
    svg.replaceChildren();
    let limitName = null;
    const x = value => left + spec.x.at(value) * (width - left - right);
    const y = value => height - bottom - spec.y.at(value) * (height - top - bottom);
    for (const t of spec.y.ticks) {
      svg.append(shape('line', {class: 'grid', x1: left, x2: width - right, y1: y(t), y2: y(t)}));
      svg.append(shape('text', {x: left - 8, y: y(t) + 4, 'text-anchor': 'end'}, spec.yText(t)));
    }
    let free = -Infinity;
    for (const t of spec.x.ticks) {
      const text = spec.xText(t), half = 3.6 * text.length;
      if (x(t) - half < free) continue;
      free = x(t) + half + 6;
      svg.append(shape('line', {class: 'grid', x1: x(t), x2: x(t), y1: height - bottom, y2: height - bottom + 5}));
      svg.append(shape('text', {x: Math.min(x(t), width - half), y: height - bottom + 19, 'text-anchor': 'middle'}, text));
    }
    svg.append(shape('text', {class: 'name', x: (left + width - right) / 2, y: height - 4, 'text-anchor': 'middle'}, spec.xName));
    svg.append(shape('text', {class: 'name', x: 2, y: 10}, spec.yName));
    if (spec.limit && spec.limit.y >= (spec.y.low ?? 0) && spec.y.at(spec.limit.y) <= 1) {
      const at = y(spec.limit.y);
      svg.append(shape('line', {class: 'limit', x1: left, x2: width - right, y1: at, y2: at}));
      const place = freePlace(spec, x, y, {left, right: width - right, at, width: 6.2 * spec.limit.name.length});
      limitName = shape('text', {class: 'limit-name', ...place}, spec.limit.name);
    }
    for (const s of spec.series) {
      const path = s.points.map(([px, py], i) => `${i ? 'L' : 'M'}${x(px).toFixed(1)},${y(py).toFixed(1)}`).join('');
      if (s.filled && s.points.length) {
        const base = height - bottom, ends = [s.points[0][0], s.points[s.points.length - 1][0]].map(x);
        svg.append(shape('path', {d: `${path}L${ends[1]},${base}L${ends[0]},${base}Z`, fill: s.tint, opacity: 0.15}));
      }
      svg.append(shape('path', {class: 'series', d: path, stroke: s.tint}));
      if (s.points.length <= 40 && !spec.noDots) {
        for (const [px, py] of s.points) svg.append(shape('circle', {cx: x(px), cy: y(py), r: 3, fill: s.tint}));
      }
    }
    if (limitName) svg.append(limitName);
    listen(svg, spec, x, {top, bottom: height - bottom});
  };
  new ResizeObserver(draw).observe(svg);
  draw();
}
// The values of every series where the pointer is nearest.
function listen(svg, spec, x, box) {
  const cursor = shape('line', {class: 'cursor', y1: box.top, y2: box.bottom, visibility: 'hidden'});
  svg.append(cursor);
  const all = [...new Set(spec.series.flatMap(s => s.points.map(p => p[0])))];
  svg.onpointermove = event => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const nearest = all.reduce((a, b) => Math.abs(x(b) - at) < Math.abs(x(a) - at) ? b : a, all[0]);
    if (nearest === undefined) return;
    cursor.setAttribute('x1', x(nearest));
    cursor.setAttribute('x2', x(nearest));
    cursor.setAttribute('visibility', 'visible');
    const rows = spec.series.map(s => [s, s.points.find(p => p[0] === nearest)]).filter(([, p]) => p)
        .map(([s, p]) => [s.tint, `${s.name} ${spec.yValue(p[1])}`]);
    showTooltip(event, spec.xValue(nearest), rows);
  };
  svg.onpointerleave = () => {
    tooltip.hidden = true;
    cursor.setAttribute('visibility', 'hidden');
  };
}
