"use strict";
// A run's page: the index first, episodes on demand. Whatever a model or a world wrote is set as text,
// never as markup.

const $ = (id) => document.getElementById(id);
const index = JSON.parse($("index").textContent);
const col = index.columns;
const size = col.task.length;
const ROW = 44;
const embedded = $("episodes") ? $("episodes").textContent.split("\n") : null;
const cache = new Map();
const state = { ep: -1, path: -1, turn: -1, other: -1 };
let shown = [];

const number = (x) => (x === null || x === undefined ? "-" : String(+Number(x).toPrecision(4)));
const short = (id) => id.split("/").pop();
const taskOf = (k) => index.tasks[col.task[k]];

function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (name === "text") node.textContent = value;
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((c) => c !== null));
  return node;
}

function svg(tag, props = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

async function episode(k) {
  if (cache.has(k)) return cache.get(k);
  const text = embedded ? embedded[k] : await range(col.at[k], col.size[k]);
  if (cache.size > 50) cache.delete(cache.keys().next().value);
  const row = JSON.parse(text);
  cache.set(k, row);
  return row;
}

async function range(at, length) {
  const answer = await fetch(index.log, { headers: { Range: `bytes=${at}-${at + length - 1}` } });
  if (answer.status !== 206) throw new Error(`the server answered ${answer.status} to a byte range`);
  return answer.text();
}

// --- the list of episodes ---------------------------------------------------------------------------

const SORTS = {
  "as played": null,
  "lowest return": (a, b) => (col.ret[a] ?? Infinity) - (col.ret[b] ?? Infinity),
  "highest return": (a, b) => (col.ret[b] ?? -Infinity) - (col.ret[a] ?? -Infinity),
  "most turns": (a, b) => col.turns[b] - col.turns[a],
  task: (a, b) => taskOf(a).localeCompare(taskOf(b), undefined, { numeric: true }),
};

function filter() {
  const text = $("f-task").value.trim().toLowerCase();
  const agent = +$("f-agent").value, env = +$("f-env").value, outcome = +$("f-outcome").value;
  const hits = text ? index.tasks.map((t) => t.toLowerCase().includes(text)) : null;
  shown = [];
  for (let k = 0; k < size; k++)
    if ((agent < 0 || col.agent[k] === agent) && (env < 0 || col.env[k] === env) &&
        (outcome < 0 || col.outcome[k] === outcome) && (!hits || hits[col.task[k]])) shown.push(k);
  const order = SORTS[$("f-sort").value];
  if (order) shown.sort((a, b) => order(a, b) || a - b);
  $("space").style.height = `${shown.length * ROW}px`;
  $("count").textContent = `${shown.length.toLocaleString("en")} of ${size.toLocaleString("en")} episodes`;
  draw();
}

function draw() {
  const box = $("rows"), first = Math.max(0, Math.floor(box.scrollTop / ROW) - 4);
  const last = Math.min(shown.length, first + Math.ceil(box.clientHeight / ROW) + 8);
  const rows = [];
  for (let at = first; at < last; at++) rows.push(rowOf(at));
  $("space").replaceChildren(...rows);
  const here = shown.indexOf(state.ep);
  if (here >= first && here < last) box.setAttribute("aria-activedescendant", `row-${here}`);
  else box.removeAttribute("aria-activedescendant");
}

function rowOf(at) {
  const k = shown[at], outcome = index.outcomes[col.outcome[k]];
  const tone = col.success[k] === 1 ? "good" : outcome === "ok" || outcome === "truncated" ? "" : "bad";
  const row = el("div", { class: "row", id: `row-${at}`, role: "option", "aria-selected": String(k === state.ep),
    "aria-posinset": at + 1, "aria-setsize": shown.length, on: { click: () => open({ ep: k }) } },
    el("i", { class: tone, text: number(col.ret[k]) }), el("b", { text: taskOf(k) }),
    el("span", { text: `${index.agents[col.agent[k]]} · seed ${col.seed[k]} · ${col.turns[k]} turns · ${outcome}` }));
  row.style.top = `${at * ROW}px`;
  return row;
}

function move(by) {
  if (!shown.length) return;
  const at = Math.min(shown.length - 1, Math.max(0, shown.indexOf(state.ep) + by));
  const box = $("rows");
  if (at * ROW < box.scrollTop) box.scrollTop = at * ROW;
  if ((at + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = (at + 1) * ROW - box.clientHeight;
  open({ ep: shown[at] });
}

// --- one episode ------------------------------------------------------------------------------------

function open(change) {
  if (change.ep !== undefined && change.ep !== state.ep) Object.assign(state, { path: -1, turn: -1, other: -1 });
  Object.assign(state, change);
  location.replace(`#${link()}`);
  draw();
  return show();
}

function link() {
  const k = state.ep, q = new URLSearchParams();
  if (k < 0) return "";
  q.set("agent", index.agents[col.agent[k]]);
  q.set("env", col.env[k]);
  q.set("task", taskOf(k));
  q.set("seed", col.seed[k]);
  if (state.path >= 0) q.set("path", state.path);
  if (state.turn >= 0) q.set("turn", state.turn);
  if (state.other >= 0) q.set("vs", index.agents[col.agent[state.other]]);
  return q.toString();
}

function find(agent, env, task, seed) {
  for (let k = 0; k < size; k++)
    if (col.seed[k] === seed && col.env[k] === env && taskOf(k) === task && index.agents[col.agent[k]] === agent)
      return k;
  return -1;
}

function follow() {
  const q = new URLSearchParams(location.hash.slice(1));
  if (!q.has("task")) return false;
  const at = (agent) => find(agent, +q.get("env"), q.get("task"), +q.get("seed"));
  const ep = at(q.get("agent"));
  if (ep < 0) return false;
  Object.assign(state, { ep, path: +(q.get("path") ?? -1), turn: +(q.get("turn") ?? -1), other: q.has("vs") ? at(q.get("vs")) : -1 });
  const row = shown.indexOf(ep);
  if (row >= 0) $("rows").scrollTop = Math.max(0, (row - 2) * ROW);
  draw();
  show();
  return true;
}

async function show() {
  const asked = { ...state };
  try {
    const [mine, other] = await Promise.all([episode(state.ep), state.other < 0 ? null : episode(state.other)]);
    if (asked.ep !== state.ep || asked.other !== state.other) return;
    const left = view(mine, state.ep, state.path), right = other && view(other, state.other, -1);
    if (right) mark(left.path, right.path, [left.node, right.node]);
    $("episode").replaceChildren(beside(), el("div", { class: "columns" }, left.node, right ? right.node : null));
    document.title = `${taskOf(state.ep)} · ${index.title}`;
    if (state.turn >= 0) goTo(left.node, state.turn);
  } catch (error) {
    $("episode").replaceChildren(el("p", { class: "bad", role: "alert", text: `This episode can't be shown: ${error.message}` }));
  }
}

function beside() {
  const k = state.ep, others = [];
  for (let j = 0; j < size; j++)
    if (j !== k && col.task[j] === col.task[k] && col.env[j] === col.env[k] && col.seed[j] === col.seed[k]) others.push(j);
  if (!others.length) return el("div");
  const select = el("select", { id: "vs", on: { change: (e) => open({ other: +e.target.value }) } },
    el("option", { value: -1, text: "nobody" }), ...others.map((j) => el("option", { value: j, text: index.agents[col.agent[j]] })));
  select.value = String(state.other);
  return el("p", {}, el("label", { for: "vs", text: "Beside it: " }), select);
}

function view(row, k, wanted) {
  const population = row.population, paths = population.trajectories;
  const all = [...paths, ...(population.discarded ?? [])];
  const at = wanted >= 0 && wanted < all.length ? wanted : population.chosen;
  const path = all[at], use = population.usage;
  const node = el("article", { "aria-label": `${index.agents[col.agent[k]]} on ${taskOf(k)}` },
    el("h2", { text: `${index.agents[col.agent[k]]} on ${taskOf(k)}` }),
    el("p", { class: "meta" }, ...[short(index.envs[col.env[k]]), `seed ${col.seed[k]}`, `return ${number(total(path))}`,
      path.success === undefined ? null : path.success ? "solved" : "not solved", path.outcome,
      `${use.model_calls} calls`, `${(use.prompt_tokens + use.completion_tokens).toLocaleString("en")} tokens`,
      use.cost === null ? "cost unknown" : `$${number(use.cost)}`, `${number(row.seconds)} s`, ...row.privileges,
    ].filter((x) => x !== null).map((text) => el("span", { text }))),
    path.failure === undefined ? null : el("p", { class: "bad", text: path.failure }),
    all.length > 1 ? choices(population, all, at, k) : null,
    population.resamplings ? genealogy(population, k) : null,
    strips(path, k),
    el("ol", { class: "turns" }, ...path.turns.map((turn, t) => turnOf(turn, t, k)),
      el("li", { class: "turn" }, el("h3", { text: "End" }), el("div", { class: "said", text: path.final }))));
  return { node, path };
}

const total = (path) => path.turns.reduce((sum, turn) => sum + turn.rew, 0);

function choices(population, all, at, k) {
  const logs = population.log_weights.map((w) => (typeof w === "string" ? -Infinity : w)), top = Math.max(...logs);
  const shares = logs.map((w) => Math.exp(w - top)), sum = shares.reduce((a, b) => a + b, 0);
  const mine = k === state.ep;
  return el("div", { class: "paths", role: "group", "aria-label": "paths" }, ...all.map((path, j) => {
    const gone = j >= population.trajectories.length;
    const weight = !gone && logs.length && sum > 0 ? `, weight ${(shares[j] / sum).toFixed(2)}` : "";
    const note = gone ? " discarded" : j === population.chosen ? " submitted" : "";
    return el("button", { type: "button", "aria-pressed": String(j === at), disabled: !mine, on: { click: () => open({ path: j, turn: -1 }) },
      text: `${j + 1}: ${number(total(path))}${weight}${note}` });
  }));
}

function series(path) {
  const found = new Map([["reward", path.turns.map((t) => t.rew)]]);
  if (path.turns.some((t) => t.tok))
    found.set("mean log-prob [nats]", path.turns.map((t) => (t.tok && t.tok[3].length ? t.tok[3].reduce((a, b) => a + b, 0) / t.tok[3].length : null)));
  for (const [name, values] of Object.entries((path.info ?? {}).turn_scores ?? {}))
    if (Array.isArray(values)) found.set(name, values);
  return [...found].filter(([, values]) => values.length);
}

function strips(path, k) {
  const all = series(path);
  return all.length ? el("section", { class: "strips", "aria-label": "numbers by turn" },
    el("p", { class: "soft", text: "By turn: blue bars are above zero, red ones below. Choose one to go to its turn." }),
    ...all.map(([name, values]) => strip(name, values, k))) : null;
}

function strip(name, values, k) {
  const real = values.filter((v) => Number.isFinite(v)), high = Math.max(0, ...real), low = Math.min(0, ...real);
  const scale = 36 / (high - low || 1), zero = 4 + high * scale, wide = Math.max(6, Math.min(24, 640 / values.length));
  const told = values.map((v, t) => `turn ${t + 1}: ${number(v)}`).slice(0, 30).join(", ");
  const picture = svg("svg", { width: 4 + wide * values.length, height: 44, role: "img", "aria-label": `${name} by turn: ${told}` });
  picture.append(svg("line", { class: "axis", x1: 0, x2: 4 + wide * values.length, y1: zero, y2: zero }));
  values.forEach((v, t) => {
    const x = 2 + t * wide, tip = svg("title");
    tip.textContent = `turn ${t + 1}: ${number(v)}`;
    if (Number.isFinite(v))
      picture.append(svg("rect", { class: v < 0 ? "neg" : "", x, width: wide - 2, y: Math.min(zero, zero - v * scale), height: Math.max(1, Math.abs(v * scale)) }));
    const cell = svg("rect", { class: "cell", x, y: 0, width: wide, height: 44 }, tip);
    cell.addEventListener("click", () => k === state.ep && open({ turn: t }));
    picture.append(cell);
  });
  const range = real.length ? `${number(Math.min(...real))} to ${number(Math.max(...real))}` : "no numbers";
  return el("figure", { class: "strip" }, el("figcaption", {}, el("b", { text: name }), el("span", { text: range })),
    el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": `${name} strip` }, picture));
}

function genealogy(population, k) {
  const points = population.resamplings, n = population.trajectories.length;
  const step = 110, gap = Math.max(9, Math.min(18, 320 / n)), y = (j) => 22 + j * gap, x = (c) => 12 + c * step;
  const told = points.map(([turn, parents]) => `after turn ${turn} ${new Set(parents).size} of ${n} particles go on`).join("; ");
  const picture = svg("svg", { width: x(points.length) + 40, height: y(n), role: "img", "aria-label": `genealogy: ${told}` });
  points.forEach(([turn, parents, logs], c) => {
    const nums = logs.map((w) => (typeof w === "string" ? -Infinity : w)), top = Math.max(...nums);
    const shares = nums.map((w) => Math.exp(w - top)), sum = shares.reduce((a, b) => a + b, 0), kept = new Set(parents);
    const label = svg("text", { x: x(c) - 8, y: 10 });
    label.textContent = `turn ${turn}`;
    picture.append(label);
    parents.forEach((parent, child) => picture.append(svg("line", { x1: x(c), y1: y(parent), x2: x(c + 1), y2: y(child), "stroke-width": 1.2, "stroke-opacity": .6 })));
    shares.forEach((w, j) => {
      const tip = svg("title");
      tip.textContent = `particle ${j + 1}: weight ${(w / sum).toFixed(3)}, ${parents.filter((p) => p === j).length} children`;
      picture.append(svg("circle", { class: kept.has(j) ? "" : "gone", cx: x(c), cy: y(j), r: 2 + Math.min(5, 5 * Math.sqrt(w / sum)) }, tip));
    });
  });
  for (let j = 0; j < n; j++) {
    const dot = svg("circle", { class: j === population.chosen ? "chosen" : "", cx: x(points.length), cy: y(j), r: 4 });
    dot.addEventListener("click", () => k === state.ep && open({ path: j, turn: -1 }));
    picture.append(dot);
  }
  return el("details", { open: true }, el("summary", { text: "Genealogy of the particles (hollow: given up; ringed: submitted)" }),
    el("div", { class: "tree wide", tabindex: "0", role: "group", "aria-label": "genealogy" }, picture));
}

function turnOf(turn, t, k) {
  const text = turn.text ?? turn.act;
  return el("li", { class: "turn", id: k === state.ep ? `turn-${t}` : false, "data-turn": t },
    el("h3", {}, el("span", { text: `Turn ${t + 1}` }), el("span", { class: turn.rew > 0 ? "good" : turn.rew < 0 ? "bad" : "soft", text: `reward ${number(turn.rew)}` })),
    el("div", { class: "said" }, el("small", { text: "world" }), turn.obs),
    el("div", { class: "said model" }, el("small", { text: "agent" }), ...(turn.tok ? tokens(turn.tok, k, text) : [text]),
      text === turn.act ? null : el("small", { text: `played: ${turn.act}` })));
}

function tokens([, , ids, logs], k, text) {
  const words = index.vocab[index.models[col.agent[k]]];
  const shaded = ids.map((id, j) => {
    const word = words ? words[id] : undefined;
    const node = el("span", { class: word === undefined ? "tok id" : "tok", text: word ?? String(id), title: `token ${id}, log-prob ${number(logs[j])}` });
    node.style.backgroundColor = `rgba(200, 90, 20, ${Math.min(0.6, -logs[j] / 8).toFixed(3)})`;
    return node;
  });
  return words ? shaded : [el("span", { text }), el("div", {}, ...shaded)];
}

function mark(left, right, nodes) {
  const same = (t) => left.turns[t] && right.turns[t] && left.turns[t].act === right.turns[t].act && left.turns[t].obs === right.turns[t].obs;
  let t = 0;
  while (same(t)) t++;
  for (const node of nodes) {
    const first = node.querySelector(`[data-turn="${t}"]`);
    if (first) first.classList.add("differs");
    node.insertBefore(el("p", { class: "soft", text: t ? `Alike for ${t} turn${t > 1 ? "s" : ""}; the first that differs is marked.` : "They differ from the first turn." }), node.children[2]);
  }
}

function goTo(node, t) {
  for (const li of node.querySelectorAll(".turn")) li.classList.toggle("here", li.dataset.turn === String(t));
  const here = node.querySelector(`[data-turn="${t}"]`);
  if (here) here.scrollIntoView({ block: "nearest" });
}

// --- set-up -----------------------------------------------------------------------------------------

function options(id, all, names, values = names.map((_, k) => k)) {
  $(id).replaceChildren(...(all ? [el("option", { value: -1, text: all })] : []), ...names.map((name, k) => el("option", { value: values[k], text: name })));
  $(id).addEventListener("change", () => { $("rows").scrollTop = 0; filter(); });
}

const KEYS = {
  j: () => move(1), k: () => move(-1),
  n: () => open({ turn: state.turn + 1 }), p: () => open({ turn: Math.max(0, state.turn - 1) }),
  "]": () => step(1), "[": () => step(-1),
  "/": () => $("f-task").focus(), c: () => $("vs") && $("vs").focus(),
  "?": () => { $("help").open = !$("help").open; },
};

async function step(by) {
  if (state.ep < 0) return;
  const population = (await episode(state.ep)).population;
  const count = population.trajectories.length + (population.discarded ?? []).length;
  const at = state.path < 0 ? population.chosen : state.path;
  open({ path: (at + by + count) % count, turn: -1 });
}

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const inList = event.target === $("rows") && { ArrowDown: () => move(1), ArrowUp: () => move(-1), Home: () => move(-size), End: () => move(size) }[event.key];
  const act = inList || KEYS[event.key];
  if (act && (state.ep >= 0 || !"np".includes(event.key))) { event.preventDefault(); act(); }
});

options("f-agent", "all systems", index.agents);
options("f-env", "all environments", index.envs.map(short));
options("f-outcome", "any", index.outcomes);
options("f-sort", "", Object.keys(SORTS), Object.keys(SORTS));
$("f-task").addEventListener("input", () => { $("rows").scrollTop = 0; filter(); });
$("rows").addEventListener("scroll", () => requestAnimationFrame(draw));
window.addEventListener("resize", draw);
window.addEventListener("hashchange", () => location.hash.slice(1) === link() || follow());
filter();
if (!follow() && size) open({ ep: shown[0] });
document.body.dataset.ready = "yes";
