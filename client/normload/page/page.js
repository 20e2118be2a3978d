// Draws the report out of the data in the page. Times in the data are microseconds.

const data = JSON.parse(document.getElementById('data').textContent);
const options = data.options;
const open = options.mode === 'open', points = data.points || [];
const shown = points.length ? data.chosen : -1;  // The run that the page shows.
let result, intervals, load, current;
const loadName = open ? 'requests offered per second' : 'callers';

const charts = document.getElementById('charts'), tables = document.getElementById('tables');
function card(parent, title, note, wide) {
  const node = element('section', {class: wide ? 'card wide' : 'card'}, element('h2', {}, title));
  if (note) node.append(element('p', {class: 'note'}, note));
  parent.append(node);
  return node;
}
function legend(node, series, block) {
  if (series.length < 2 && !block) return;
  node.append(element('div', {class: 'legend'}, ...series.map(
      s => element('span', {colour: s.tint, class: block ? 'block' : ''}, s.name))));
}
function lines(node, spec) {
  spec.title = node.querySelector('h2').textContent;
  legend(node, spec.series);
  chart(node, spec);
}
function span(series) {
  const values = series.flatMap(s => s.points.map(p => p[1])).filter(v => v > 0);
  return values.length ? [Math.min(...values), Math.max(...values)] : [1, 10];
}
let objective;
const first = data.result.objective;
const limit = first && {y: first.limit_us, name: `objective: p${first.percent} within ${time(first.limit_us)}`};
// A logarithmic scale of times that holds the objective too, if it is near.
function timeScale(series, withLimit) {
  let [low, high] = span(series);
  if (withLimit && limit && limit.y < 20 * high && limit.y > low / 20) {
    low = Math.min(low, limit.y);
    high = Math.max(high, limit.y * 1.1);
  }
  return logarithmic(low, Math.max(high, low * 1.5));
}

// ---- The parts of the page.

function head() {
  const what = options.mix.map(m => `${m.model} ${m.shape.join('×')} ${m.dtype}${m.stream_chunk_bytes ? ', streamed' : ''}`).join(' · ');
  document.title = `normload: ${options.load}`;
  document.getElementById('title').textContent = options.load;
  document.getElementById('subtitle').textContent =
      `${what} · ${options.server} · ${data.started_at.replace('T', ' ').replace('Z', ' UTC')}` +
      (data.processes > 1 ? ` · ${data.processes} processes` : '');
  const verdict = document.getElementById('verdict');
  const words = [];
  if (data.error) words.push(`${data.error.code}: ${data.error.message.replace(/\.?$/, '.')}`);
  if (objective) {
    words.push(`Objective p${objective.percent} within ${time(objective.limit_us)}: ` +
        `${objective.met ? 'met' : 'missed'}, it took ${time(objective.reached_us)}` +
        (points.length ? ` at ${amount(load)} ${open ? 'requests/s' : 'callers'}` : '') +
        `; ${share(objective.within_share)} of the requests were within it.`);
    if (options.sweep && points.length > 1) {
      const most = Math.max(...points.filter(p => p.result.objective.met).map(p => p.load));
      words.push(most > 0 ? `Met up to ${amount(most)} ${open ? 'requests/s' : 'callers'}.` : 'Met at none of these loads.');
    }
  }
  document.getElementById('notes').replaceChildren(...(current === shown && data.notes || []).map(
      note => element('p', {}, `Note: ${note}.`)));
  verdict.hidden = words.length === 0;
  verdict.className = data.error || (objective && !objective.met) ? 'failed' : 'met';
  verdict.textContent = words.join(' ');
}

function tiles() {
  const t = result.response_time, list = [];
  if (points.length) list.push([open ? 'Offered rate' : 'Callers', amount(load), open ? '/s' : '']);
  list.push(['Answered', amount(Math.round(result.ok_per_s)), '/s']);
  if (objective) list.push(['Goodput', amount(Math.round(objective.goodput_per_s)), '/s']);
  for (const [name, key] of [['p50', 'p50_us'], ['p99', 'p99_us'], ['p99.9', 'p99_9_us'], ['Longest', 'max_us']]) {
    const [value, unit] = time(t[key]).split(' ');
    list.push([name, value, unit || '']);
  }
  list.push(['Errors', ...(result.errors ? share(result.error_share).split(/ (?=%)/) : ['none', ''])]);
  if (result.unsent) list.push(['Unsent', amount(result.unsent), '']);
  document.getElementById('tiles').replaceChildren(...list.map(([name, value, unit]) => element('div', {class: 'tile'},
      element('div', {class: 'name'}, name),
      element('div', {class: 'value'}, value, ' ', element('span', {class: 'unit'}, unit)))));
}

// Says which of several runs a chart shows.
const ofRun = () => points.length > 1 ? `At ${amount(load)} ${open ? 'requests/s' : 'callers'}. ` : '';
function distribution() {
  const series = [{name: 'response time', tint: colour(1), points: result.response_time.curve}];
  if (open) series.push({name: 'service time', tint: colour(2), points: result.service_time.curve});
  if (!series[0].points.length) return;
  for (const s of series) s.points = s.points.map(([p, us]) => [p, Math.max(us, 0.1)]);
  const node = card(charts, 'Latency by percentile', ofRun() + (open ?
      'Response time counts from the moment a request was meant to leave, service time from the moment it left.' :
      'From the send to the response, of the responses with OK.'));
  const last = series[0].points[series[0].points.length - 1][0];
  lines(node, {series, limit, noDots: true, x: nines(Math.max(last, 90)), y: timeScale(series, true),
               xName: 'percentile', yName: '', xText: t => `${t}`, yText: time,
               xValue: p => `p${round(p, 6)}`, yValue: time});
}

function entries() {
  if (!result.by_entry) return;
  const series = result.by_entry.filter(e => e.response_time.curve.length).slice(0, 8).map((e, i) => (
      {name: e.entry, tint: colour(i + 1), points: e.response_time.curve}));
  if (series.length < 2) return;
  const last = Math.max(...series.map(s => s.points[s.points.length - 1][0]));
  lines(card(charts, 'Response time of each entry of the mix', ofRun()),
        {series, noDots: true, x: nines(Math.max(last, 90)), y: timeScale(series),
         xName: 'percentile', yName: '', xText: t => `${t}`, yText: time,
         xValue: p => `p${round(p, 6)}`, yValue: time});
}

function overTime() {
  const rows = intervals.filter(i => i.end_s - i.begin_s > 0.05);
  if (rows.length < 2) return;
  const middle = i => (i.begin_s + i.end_s) / 2, rate = (i, n) => n / (i.end_s - i.begin_s);
  const x = linear(0, rows[rows.length - 1].end_s, true);
  const common = {x, xName: 'seconds since the end of the warm-up', yName: '', xText: t => round(t),
                  xValue: t => `${round(t)} s`};
  const throughput = [{name: 'ok per second', tint: colour(3), filled: true, points: rows.map(i => [middle(i), rate(i, i.ok)])}];
  if (rows.some(i => i.errors)) {
    throughput.push({name: 'errors per second', tint: colour(6), points: rows.map(i => [middle(i), rate(i, i.errors)])});
  }
  lines(card(charts, 'Throughput over time', ofRun()),
        {...common, series: throughput, y: linear(0, span(throughput)[1]), yText: short, yValue: v => `${amount(Math.round(v))}/s`});
  const latency = [['p50', 'p50_us', 3], ['p99', 'p99_us', 1], ['p99.9', 'p99_9_us', 4], ['longest', 'max_us', 8]].map(
      ([name, key, tint]) => ({name, tint: colour(tint), points: rows.filter(i => i.ok && i[key]).map(i => [middle(i), i[key]])}));
  lines(card(charts, 'Response time over time', ofRun() + (data.processes > 1 ? 'The largest of the processes.' : '')),
        {...common, series: latency, limit, y: timeScale(latency, true), yText: time, yValue: time});
}

function sweep() {
  if (points.length < 2) return;
  // A search tries a rate again; the curve keeps each rate's last run.
  const byLoad = new Map(points.map(p => [p.load, p]));
  const rows = [...byLoad.values()].filter(p => p.result.ok).sort((a, b) => a.load - b.load);
  if (rows.length < 2) return;
  const loads = rows.map(p => p.load), wide = loads[loads.length - 1] / loads[0] > 20;
  const x = wide ? logarithmic(loads[0], loads[loads.length - 1]) : linear(0, loads[loads.length - 1]);
  const common = {x, xName: loadName, yName: '', xText: short, xValue: v => `${amount(v)} ${open ? 'requests/s' : 'callers'}`};
  const latency = [['p50', 'p50_us', 3], ['p99', 'p99_us', 1], ['p99.9', 'p99_9_us', 4]].map(
      ([name, key, tint]) => ({name, tint: colour(tint), points: rows.map(p => [p.load, p.result.response_time[key]])}));
  lines(card(charts, 'Latency against load', 'Response time of the runs at each load.'),
        {...common, series: latency, limit, y: timeScale(latency, true), yText: time, yValue: time});
  const done = [{name: 'answered with OK', tint: colour(3), points: rows.map(p => [p.load, p.result.ok_per_s])}];
  if (objective) done.push({name: 'within the objective', tint: colour(1), points: rows.map(p => [p.load, p.result.objective.goodput_per_s])});
  if (open) done.push({name: 'offered', tint: colour(8), points: rows.map(p => [p.load, p.load])});
  lines(card(charts, 'Throughput against load', ''),
        {...common, series: done, y: linear(0, span(done)[1]), yText: short, yValue: v => `${amount(Math.round(v))}/s`});
}

// Where the mean response time went, outermost part first. The server's own means come from its
// /metrics if they were scraped, else from the responses. Of a model that was streamed to, only the
// stages are told: they are those of pieces, of which a stream has many.
const streamed = model => model ? (model.stream || {count: 0}).count > 0 : options.mix.some(m => m.stream_chunk_bytes);
function parts(model) {
  const order = ['decode', 'queue', 'gather', 'copy_in', 'compute', 'copy_out', 'encode'];
  const means = model ? Object.fromEntries(Object.entries(model.stages).map(([k, v]) => [k, v.mean_us])) :
      result.server_stage_means_us;
  const stages = order.filter(s => means[s] > 0).map(s => (
      {name: s, us: means[s], tint: colour([5, 1, 7, 4, 3, 4, 2][order.indexOf(s)]), p99: model && model.stages[s].p99_us}));
  if (streamed(model)) return stages;
  const inStages = stages.reduce((sum, s) => sum + s.us, 0);
  const list = [];
  if (open && result.send_lag.mean_us > 0) list.push({name: 'send lag (client)', us: result.send_lag.mean_us, tint: colour(6), p99: result.send_lag.p99_us, outside: true});
  const inServer = model ? Math.max(model.request.mean_us, inStages) : inStages;
  const outside = Math.max(0, result.service_time.mean_us - inServer);
  list.push({name: model ? 'network, gRPC, client' : 'network, gRPC, client, rest of the server', us: outside, tint: colour(8), outside: true});
  list.push(...stages);
  if (inServer - inStages > 0) list.push({name: 'rest of the server: gRPC sends the response', us: inServer - inStages, tint: colour(9)});
  return list;
}
function breakdown() {
  if (!result.ok) return;
  const server = result.server_metrics, models = server ? server.models : [];
  for (const model of models.length ? models : [null]) {
    // What happens outside the server is not known for each model.
    const several = models.length > 1;
    const shown = parts(model).filter(p => !several || !p.outside);
    if (!shown.length) continue;
    const sum = shown.reduce((s, p) => s + p.us, 0);
    const node = card(tables, several ? `Where the time went in the server: ${model.model}` : 'Where the time went',
        (server ? 'Means; the server\'s own from /metrics, scraped at the end of the warm-up and after the last response.' :
                  'Means; the server\'s own as it reports them with each response.') +
        ' Gather, copies and compute are of the whole batch.' +
        (!streamed(model) ? '' : model ? ' A stream counts as its pieces, each a request of its own here.' :
         ' Of a stream they are the sums over its pieces, which overlap.'), true);
    node.append(element('div', {class: 'bar', role: 'img', 'aria-label': 'shares of the mean'}, ...shown.map(p => {
      const piece = element('div', {title: `${p.name}: ${time(p.us)}, ${share(p.us / sum)}`});
      piece.style.cssText = `flex: ${p.us / sum} 0 0; background: ${p.tint}`;
      return piece;
    })));
    const withP99 = shown.some(p => p.p99 !== undefined && p.p99 !== null);
    node.append(table(['', 'mean', 'share', ...(withP99 ? ['p99'] : [])], shown.map(p => [
      element('span', {}, element('span', {class: 'swatch', colour: p.tint}), p.name), time(p.us), share(p.us / sum),
      ...(withP99 ? [p.p99 ? time(p.p99) : ''] : [])])));
  }
}

function table(names, rows) {
  return element('div', {class: 'scroll'}, element('table', {},
      element('thead', {}, element('tr', {}, ...names.map(n => element('th', {}, n)))),
      element('tbody', {}, ...rows.map(row => element('tr', {}, ...row.map(
          cell => cell && cell.text !== undefined ? element('td', {class: 'text'}, cell.text) : element('td', {}, cell)))))));
}
const percentiles = [['p50', 'p50_us'], ['p90', 'p90_us'], ['p99', 'p99_us'], ['p99.9', 'p99_9_us'], ['p99.99', 'p99_99_us'], ['longest', 'max_us'], ['mean', 'mean_us']];
function timesRow(name, histogram) {
  return [name, ...percentiles.map(([, key]) => histogram.count ? time(histogram[key]) : '')];
}
// Every run of a sweep or a search; a click on one shows it in the rest of the page.
function runs() {
  if (!points.length) return;
  const several = points.length > 1 && points.every(p => p.result.response_time.curve);
  const node = card(tables, 'Runs', several ? 'Choose one, and the page shows it.' : '', true);
  node.append(table(
      [open ? 'rate' : 'callers', 'ok/s', 'p50', 'p90', 'p99', 'p99.9', 'longest', 'errors', 'unsent', ...(objective ? ['objective'] : [])],
      points.map((p, i) => [several ? element('button', {type: 'button', 'data-run': i}, amount(p.load)) : amount(p.load),
        amount(Math.round(p.result.ok_per_s)),
        ...['p50_us', 'p90_us', 'p99_us', 'p99_9_us', 'max_us'].map(k => p.result.ok ? time(p.result.response_time[k]) : ''),
        amount(p.result.errors), amount(p.result.unsent), ...(objective ? [p.result.objective.met ? 'met' : 'missed'] : [])])));
  [...node.querySelectorAll('tbody tr')].forEach((row, i) => {
    if (i === current) row.className = 'current';
    if (!several) return;
    row.classList.add('choice');
    row.onclick = () => {
      const before = row.getBoundingClientRect().top;
      show(i);
      const again = document.querySelector(`[data-run="${i}"]`);
      scrollBy(0, again.closest('tr').getBoundingClientRect().top - before);  // The row stays under the pointer.
      again.focus({preventScroll: true});
    };
  });
}
function entryTable() {
  if (!result.by_entry) return;
  const seconds = result.elapsed_s || 1, streams = result.by_entry.some(e => e.first_bytes);
  const rate = bytes => `${round(bytes / seconds / 1e6)} MB/s`;
  card(tables, 'Entries of the mix', streams ? 'First bytes: from the intended send of a stream to the first bytes of its response.' : '', true).append(table(
      ['', 'weight', 'ok', 'errors', 'out', 'back', 'p50', 'p99', 'longest', ...(streams ? ['first bytes p50', 'p99'] : [])],
      result.by_entry.map((e, i) => {
        const t = e.response_time, f = e.first_bytes, of = (h, key) => h && h.count ? time(h[key]) : '';
        return [e.entry.replaceAll(':', ':\u200b'), round(options.mix[i].weight), amount(t.count), amount(e.errors), rate(e.sent_bytes), rate(e.received_bytes),
                of(t, 'p50_us'), of(t, 'p99_us'), of(t, 'max_us'), ...(streams ? [of(f, 'p50_us'), of(f, 'p99_us')] : [])];
      })));
}
function numbers() {
  const rows = [timesRow('response time', result.response_time)];
  if (open) rows.push(timesRow('service time', result.service_time), timesRow('send lag', result.send_lag));
  if (result.ok) card(tables, 'Times', '', true).append(table(['', ...percentiles.map(p => p[0])], rows));
  entryTable();
  const answers = card(tables, 'Answers', `Stopped: ${result.stopped_by}, after ${round(result.elapsed_s)} s.`);
  const seconds = result.elapsed_s || 1;
  answers.append(table(['', 'requests', ''], [
    ...Object.entries(result.codes).map(([code, n]) => [code, amount(n), {text: result.first_messages[code] || ''}]),
    ...(result.cancelled ? [['cancelled, as asked', amount(result.cancelled), {text: ''}]] : []),
    ...(result.unsent ? [['unsent', amount(result.unsent), {text: 'still waiting to leave at the end'}]] : []),
    ['warm-up', amount(result.warmup_requests), {text: 'not measured'}]]));
  answers.append(element('p', {class: 'note'},
      `Tensors: ${round(result.sent_bytes / seconds / 1e6)} MB/s out, ${round(result.received_bytes / seconds / 1e6)} MB/s back. ` +
      (result.batch_requests.max ? `Batches: ${round(result.batch_requests.mean)} requests on average, ${amount(result.batch_requests.max)} at most.` : '') +
      (result.verified ? ` Verified: ${amount(result.verified)} responses, ${amount(result.wrong)} wrong.` : '')));
  const e = data.environment, server = result.server_metrics;
  const rowsOfRun = [
    ['server', `normd ${e.server_version}, ${e.server_lanes.join(', ')}, ${e.server_simd}${e.server_cuda ? `, CUDA ${e.server_cuda}` : ''}`],
    ['client', `${e.client_host}, ${e.client_cpus} processors${e.client_cpu ? ` (${e.client_cpu})` : ''}, ${options.connections} connections${{uds: ', over a unix socket', shm: ', tensors in shared memory'}[options.plane] || ''}`],
    ...(e.command ? [['command', e.command]] : []),
    ['mix', options.mix.map(m => `${m.entry || m.model}${m.weight !== 1 ? `, weight ${round(m.weight)}` : ''}`).join('; ')],
    ['seed', `${options.seed}`], ['deadline', options.timeout_s ? `${options.timeout_s} s` : 'none'], ['warm-up', `${options.warmup_s} s`]];
  if (server) {
    rowsOfRun.push(['lanes busy', server.lanes.map(l => `${l.lane.split(' ').pop()} ${share(l.busy_share)}`).join(', ')],
                   ['processors used', `${round(server.cpu_s / server.elapsed_s)} by the server, on average`]);
  }
  card(tables, 'Environment').append(table(['', ''], rowsOfRun.map(([name, text]) => [name, {text}])));
  document.getElementById('footer').textContent =
      `Made by normload. Percentiles are exact to 0.1 %. ${data.options.mode === 'closed' && !points.length ?
      'A closed loop waits for answers before it sends: it shows what the server can do, not what users would wait. Use --rate for that.' : ''}`;
}

// The run of that index, of the only one below 0.
function show(index) {
  const run = index < 0 ? data : points[index];
  current = index;
  ({result, intervals, load} = run);
  objective = result.objective;
  charts.replaceChildren();
  tables.replaceChildren();
  head();
  tiles();
  sweep();
  distribution();
  overTime();
  entries();
  runs();
  breakdown();
  numbers();
}
// Points of a long sweep have no curves; the chosen run has them beside the points.
if (shown >= 0) Object.assign(points[shown], {result: data.result, intervals: data.intervals});
// A sweep begins with the highest load that meets the objective, if it has one.
const met = options.sweep && points.every(p => p.result.response_time.curve) ?
    points.reduce((best, p, i) => p.result.objective && p.result.objective.met && (best < 0 || p.load >= points[best].load) ? i : best, -1) : -1;
show(met >= 0 ? met : shown);
