'use strict';
// Fills the page with what /status.json tells. Texts of the server become text nodes, never HTML.

const PERIOD = 5000, MINUTES = 10;
const byId = id => document.getElementById(id);
function node(namespace, name, attributes, children) {
  const made = namespace ? document.createElementNS(namespace, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const el = (name, attributes, ...children) => node(null, name, attributes, children);
const shape = (name, attributes, ...children) => node('http://www.w3.org/2000/svg', name, attributes, children);
// A text that has not changed is left alone: a screen reader would read it again.
function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

// ---- Numbers, as [number, unit].

function digits(value) {
  if (value === 0) return '0';
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString('en', {maximumFractionDigits: Math.min(places, 3)});
}
const count = value => [Math.round(value).toLocaleString('en'), ''];
const rate = value => [digits(value), '/s'];
const percent = value => [value > 0 && value < 0.001 ? '< 0.1' : digits(Math.round(value * 1000) / 10), '%'];
function duration(seconds) {
  if (seconds === null) return ['–', ''];
  if (seconds >= 1) return [digits(seconds), 's'];
  return seconds >= 1e-3 ? [digits(seconds * 1e3), 'ms'] : [digits(seconds * 1e6), 'µs'];
}
function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = value > 0 ? Math.min(units.length - 1, Math.floor(Math.log2(value) / 10)) : 0;
  return [digits(value / 1024 ** power), units[power]];
}
function age(seconds) {
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const [size, unit] = units.find(([size]) => seconds >= size) || units[3];
  return [Math.floor(seconds / size), unit];
}
const text = ([number, unit]) => unit === '/s' ? `${number}/s` : unit ? `${number} ${unit}` : `${number}`;

// ---- What the data hold.

let data = null;
const series = name => data.metrics[name] || [];
function metric(name, labels = {}) {
  const found = series(name).filter(one => Object.entries(labels).every(([key, value]) => one[key] === value));
  return found.reduce((sum, one) => sum + one.value, 0);
}
const by = (name, label) => [...new Set(series(name).map(one => one[label]))];

// ---- The parts of the page.

function head() {
  const [build] = series('normd_build_info');
  say('version', build ? `${build.version}${build.cuda ? `, CUDA ${build.cuda}` : ', CPU only'}` : '');
  state(data.ready ? 'Ready' : `Not ready: ${data.not_ready}`, data.ready);
  const started = metric('process_start_time_seconds');
  const up = Math.max(0, Date.parse(data.time) / 1000 - started);
  say('about', `${started ? `Up for ${text(age(up))} · ` : ''}as of ${data.time.slice(11, 19)} UTC`);
  const notes = [];
  const failed = data.models.filter(model => model.error).length;
  if (failed) notes.push(`versions of models that failed to load: ${failed} of ${data.models.length}`);
  const retired = metric('normd_lanes', {state: 'retired'});
  if (retired) notes.push(`lanes that met an error and take no more batches: ${retired}`);
  const lost = metric('normd_log_lines_lost_total');
  if (lost) notes.push(`lines of the log that were lost: ${text(count(lost))}`);
  const expires = metric('normd_certificate_not_after_seconds');
  const left = expires - Date.parse(data.time) / 1000;
  if (expires && left < 7 * 86400) {
    notes.push(left > 0 ? `the certificate expires in ${text(age(left))}` : 'the certificate has expired');
  }
  byId('notes').hidden = notes.length === 0;
  if (byId('notes').textContent !== notes.join('')) {
    byId('notes').replaceChildren(...notes.map(note => el('li', {}, note)));
  }
}
function state(words, good) {
  byId('state').className = good ? 'good' : 'bad';
  say('state', words);
  document.title = good ? 'normd' : `normd: ${words}`;
}

function tiles() {
  const {minute, lines} = data, last = list => list.length ? list[list.length - 1] : 0;
  const per = value => minute.seconds > 0 ? value / minute.seconds : 0;
  byId('tiles').replaceChildren(...[
    ['Requests', rate(per(minute.requests))],
    ['Failed', percent(minute.requests ? minute.failed / minute.requests : 0)],
    ['p50', duration(minute.p50)],
    ['p99', duration(minute.p99)],
    ['Waiting for a lane', count(last(lines.queued))],
    ['Saturation', percent(metric('normd_saturation_ratio'))],
  ].map(([name, [number, unit]]) =>
      el('div', {}, el('dt', {}, name), el('dd', {}, `${number}`, el('span', {}, unit && ` ${unit}`)))));
}

// A scale from 0 to a round number.
function linear(values) {
  const most = Math.max(...values, 0), power = 10 ** Math.floor(Math.log10(most || 1));
  const end = most ? [1, 2, 5, 10].map(n => n * power).find(n => n >= most) : 1;
  return {ticks: [0, end / 2, end], at: value => value / end};
}
// With whole numbers at its ticks.
const counts = values => linear([...values, 2]);
const whole = () => ({ticks: [0, 0.5, 1], at: value => value});
// Powers of ten around the values.
function logarithmic(values) {
  const some = values.filter(value => value > 0);
  const low = some.length ? Math.floor(Math.log10(Math.min(...some))) : -4;
  const high = some.length ? Math.max(low + 1, Math.ceil(Math.log10(Math.max(...some)))) : -1;
  const ticks = [];
  for (let power = low; power <= high; ++power) ticks.push(10 ** power);
  return {ticks, at: value => (Math.log10(value) - low) / (high - low)};
}

function chart(title, scale, show, lines) {
  const picture = shape('svg', {role: 'img'});
  const names = lines.length > 1 ? lines.map(([name], i) => el('span', i ? {class: 'two'} : {}, name)) : [];
  const card = el('figure', {class: 'card'}, el('figcaption', {}, title, ...names), picture);
  return {card, draw: () => draw(picture, {title, scale, show, lines})};
}
function draw(picture, {title, scale, show, lines}) {
  const values = lines.map(([, key]) => data.lines[key]), known = values.flat().filter(value => value !== null);
  const {ticks, at} = scale(known);
  const width = picture.clientWidth || 300, height = 150, left = 52, bottom = 20, top = 8, right = 8;
  const x = ago => width - right - ago / (60 * MINUTES) * (width - left - right);
  const y = value => height - bottom - at(value) * (height - bottom - top);
  picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const parts = [];
  for (const tick of ticks) {
    parts.push(shape('line', {class: 'grid', x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
        shape('text', {x: left - 6, y: y(tick) + 4, 'text-anchor': 'end'}, text(show(tick))));
  }
  for (const minutes of [10, 5, 0]) {
    parts.push(shape('text', {x: x(60 * minutes), y: height - 4,
      'text-anchor': minutes === 10 ? 'start' : minutes ? 'middle' : 'end'}, minutes ? `${minutes} min ago` : 'now'));
  }
  values.forEach((list, i) => {
    const attributes = i ? {class: 'two'} : {};
    let path = '', ago = data.lines.seconds.reduce((sum, one) => sum + one, 0) + data.reading_age;
    list.forEach((value, at) => {
      ago -= data.lines.seconds[at];
      if (value === null || ago > 60 * MINUTES) return;
      const point = `${x(ago).toFixed(1)},${y(value).toFixed(1)}`;
      path += (path && list[at - 1] !== null ? 'L' : 'M') + point;
      // A value between two gaps is no line.
      if (list[at - 1] == null && list[at + 1] == null) {
        parts.push(shape('circle', {...attributes, cx: x(ago), cy: y(value), r: 2}));
      }
    });
    parts.push(shape('path', {...attributes, d: path}));
  });
  const told = lines.map(([name], i) => {
    const own = values[i].filter(value => value !== null);
    return own.length ? `${name} at last ${text(show(own[own.length - 1]))}, highest ${text(show(Math.max(...own)))}`
        : `no ${name}`;
  });
  picture.setAttribute('aria-label', `${title}, the last ten minutes: ${told.join('; ')}`);
  picture.replaceChildren(...parts);
}

// Names of models are long words: they may break after an underscore.
const breakable = name => name.split(/(?<=_)/).flatMap((part, i) => i ? [el('wbr'), part] : [part]);

// A table. `rows` gives [its rows, the text without a row]; a row has a name, a text below it and cells.
function table(title, heads, wide, rows) {
  const body = el('tbody', {}), table = el('table', {}, el('caption', {}, title),
      el('thead', {}, el('tr', {}, ...heads.map(name => el('th', {scope: 'col'}, name)))), body);
  const none = el('p', {class: 'soft'});
  const card = el('div', {class: wide ? 'card wide' : 'card'},
      el('div', {class: 'scroll', role: 'region', 'aria-label': title, tabindex: '0'}, table), none);
  let shown = null;
  return {card, draw: () => {
    const [list, empty] = rows(), now = JSON.stringify(list);
    none.textContent = list.length ? '' : empty || 'None.';
    if (now === shown) return;
    shown = now;
    body.replaceChildren(...list.map(({name, below, bad, cells}) => el('tr', {},
        el('th', {scope: 'row'}, ...breakable(name), ...(below ? [el('small', bad ? {class: 'bad'} : {}, below)] : [])),
        ...cells.map(cell => el('td', {}, Array.isArray(cell) ? text(cell) : cell)))));
  }};
}
const of = (value, limit) => limit ? percent(value / limit) : '–';

function calls() {
  const {minute} = data;
  return [[...minute.calls].sort((a, b) => b.requests - a.requests).map(row => ({
    name: row.model || '(no loaded model)', below: row.method,
    cells: [rate(row.requests / minute.seconds), percent(row.failed / Math.max(row.requests, row.failed, 1)),
      duration(row.p50), duration(row.p99)],
  })), 'No call in the last minute.'];
}
function models() {
  const states = {loaded: 0, failed: 1};
  const list = [...data.models].sort((a, b) => states[b.state] - states[a.state]);
  return [list.map(model => ({
    name: model.version ? `${model.name}, version ${model.version}` : model.name,
    below: model.error && (model.state === 'loaded' ? `the last load failed: ${model.error}` : model.error), bad: true,
    cells: [model.state, `${text(age(model.age))} ago`],
  })), 'The server knows no model.'];
}
function refusals() {
  const list = data.refusals.map(one => ({name: one.reason, cells: [count(one.minute), count(one.ten_minutes)]}));
  return [list, 'No request was refused in the last ten minutes.'];
}
function budgets() {
  const queued = data.lines.queued.at(-1) || 0;
  return [[
    ['Requests that wait for a lane', count(queued), count(metric('normd_queue_limit_requests')), 'limit of each version'],
    ['Tensors in flight', bytes(metric('normd_inflight_bytes')), bytes(metric('normd_inflight_limit_bytes'))],
    ['Received, not yet with the service', bytes(metric('normd_transport_undelivered_bytes')), '–'],
    ...by('normd_connections', 'port').map(port => [
      `Connections: ${port}`, count(metric('normd_connections', {port})), count(metric('normd_connections_limit', {port}))]),
    ['File descriptors', count(metric('process_open_fds')), count(metric('process_max_fds'))],
    ['Connections to this port', count(metric('normd_http_connections')), '–'],
  ].map(([name, now, limit, below]) => ({name, below, cells: [now, limit]}))];
}
function lanes() {
  return [data.minute.lanes.map(lane => ({name: lane.device, below: `lane ${lane.lane}`, cells: [percent(lane.busy)]}))];
}
function devices() {
  return [by('normd_lanes', 'device').map(device => ({
    name: device, below: (series('normd_device_info').find(one => one.device === device) || {}).description,
    cells: [count(metric('normd_lanes', {device, state: 'working'})), count(metric('normd_lanes', {device, state: 'retired'}))],
  }))];
}
function memory() {
  const rows = [{name: 'The whole process', cells: [bytes(metric('process_resident_memory_bytes')), '–']}];
  for (const pool of by('normd_pool_bytes', 'pool')) {
    rows.push({name: `Pool ${pool}`, cells: ['used', 'free'].map(state => bytes(metric('normd_pool_bytes', {pool, state})))});
  }
  const shared = metric('normd_shared_region_bytes');
  if (shared) rows.push({name: 'Shared with clients', cells: [bytes(shared), '–']});
  return [rows];
}
function connections() {
  const rows = [['Accepted', 'normd_connections_accepted_total']];
  for (const [word, name] of [['Refused', 'normd_connections_refused_total'], ['Ended', 'normd_connections_ended_total']]) {
    for (const reason of by(name, 'reason')) {
      if (metric(name, {reason})) rows.push([`${word}: ${reason}`, name, {reason}]);
    }
  }
  return [rows.map(([name, source, labels]) => ({name, cells: [count(metric(source, labels))]}))];
}

const charts = [
  chart('Requests a second', linear, rate, [['all', 'requests_per_second'], ['failed', 'failed_per_second']]),
  chart('Response time', logarithmic, duration, [['p50', 'p50'], ['p99', 'p99']]),
  chart('Saturation', whole, percent, [['saturation', 'saturation']]),
  chart('Requests that wait for a lane', counts, count, [['waiting', 'queued']]),
];
const tables = [
  table('Calls, the last minute', ['model and method', 'requests', 'failed', 'p50', 'p99'], true, calls),
  table('Models', ['version', 'state', 'loaded'], true, models),
  table('Refused requests, by reason', ['reason', 'last minute', 'ten minutes'], false, refusals),
  table('Waiting and budgets', ['what', 'now', 'limit'], false, budgets),
  table('Lanes, the last minute', ['device', 'busy'], false, lanes),
  table('Devices', ['device', 'working', 'retired'], false, devices),
  table('Memory', ['where', 'used', 'free'], false, memory),
  table('Connections since the start', ['what', 'number'], false, connections),
];
byId('charts').append(...charts.map(one => one.card));
for (const {card} of tables) byId(card.classList.contains('wide') ? 'tables' : 'columns').append(card);

function show() {
  byId('main').hidden = false;
  head();
  tiles();
  for (const part of [...charts, ...tables]) part.draw();
}
async function ask() {
  try {
    const answer = await fetch('/status.json', {cache: 'no-store', signal: AbortSignal.timeout(10000)});
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    data = await answer.json();
    show();
  } catch (error) {
    state(`No answer: ${error.message}${data ? `; the numbers are of ${data.time.slice(11, 19)} UTC` : ''}`, false);
  }
}
// A page that nobody looks at asks nothing.
async function follow() {
  if (!document.hidden) await ask();
  setTimeout(follow, PERIOD);
}
document.addEventListener('visibilitychange', () => document.hidden || ask());
addEventListener('resize', () => data && charts.forEach(one => one.draw()));
follow();
