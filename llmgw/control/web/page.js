// Asks control every two seconds and shows what it says. Text only ever becomes text: what engines and other boxes
// say is never taken for HTML. It cannot change anything: it only ever sends GET.
"use strict";

const EVERY_MS = 2000, PLAN_EVERY = 5, EVENTS = 30;
const GOOD = new Set(["ready", "loaded", "adopt", "join", "keep"]);
const BAD = new Set(["failed", "unreachable", "degraded", "unhealthy", "stop", "stray", "conflict", "forget", "unclaimed"]);
const WARN = new Set(["loading", "starting", "pending", "assembling", "draining", "stopping", "unknown", "waiting",
  "expected", "read-only", "drained", "drain", "roll", "replace", "hold", "wait", "start"]);
const $ = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") || "", held = false, round = 0, heard = 0;

function el(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function kind(word) {
  return GOOD.has(word) ? "good" : BAD.has(word) ? "bad" : WARN.has(word) ? "warn" : "dim";
}

// One table; rows are lists of cells, a cell is a text or a node. Cells that did not change are left alone, so that a
// selection and a screen reader's place stay.
function table(into, caption, head, rows, empty) {
  const where = $(into);
  const text = JSON.stringify([head, rows.map((r) => r.map((c) => (c instanceof Node ? c.outerHTML : c)))]);
  if (where.dataset.shown === text) return;
  where.dataset.shown = text;
  if (!rows.length) { where.replaceChildren(el("p", empty, "dim")); return; }
  const made = el("table"), top = el("thead"), line = el("tr"), body = el("tbody");
  for (const name of head) { const th = el("th", name); th.scope = "col"; line.append(th); }
  top.append(line);
  for (const row of rows) {
    const tr = el("tr");
    row.forEach((cell, i) => {
      const td = el(i ? "td" : "th");
      if (i) td.dataset.label = head[i]; else td.scope = "row";
      if (cell instanceof Node) td.append(cell); else if (cell) td.textContent = cell;
      tr.append(td);
    });
    body.append(tr);
  }
  made.append(el("caption", caption), top, body);
  const scroll = el("div", null, "scroll");
  scroll.append(made);
  where.replaceChildren(scroll);
}

const gib = (bytes) => (bytes / 2 ** 30).toFixed(1);

function ago(iso) {
  if (!iso) return "";
  const s = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  if (s < 60) return `${Math.floor(s)}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
}

function gpuCell(gpus) {
  if (!gpus.length) return "";
  const all = el("div");
  for (const g of gpus) {
    const ours = Math.max(0, g.used - g.foreign), say = `${g.index} ${g.name}: ${gib(g.used)} of ${gib(g.memory)} GiB`;
    const line = el("div", g.foreign ? `${say}, ${gib(g.foreign)} not ours` : say);
    if (g.trouble || !g.healthy) line.append(" ", el("span", g.trouble || "not healthy", "bad"));
    if (g.drained) line.append(" ", el("span", "drained", "warn"));
    const bar = el("div", null, "bar");
    bar.setAttribute("aria-hidden", "true");
    for (const part of [ours, g.foreign]) {
      const piece = el("i");
      piece.style.width = `${g.memory ? Math.min(100, (100 * part) / g.memory) : 0}%`;
      bar.append(piece);
    }
    line.append(bar);
    all.append(line);
  }
  return all;
}

function watts(node) {
  if (node.power_w === null) return node.power_budget_w ? `of ${node.power_budget_w} W` : "";
  return `${Math.round(node.power_w)}${node.power_budget_w ? ` of ${node.power_budget_w}` : ""} W`;
}

function showStatus(s) {
  const said = [`${s.leader.name} leads, epoch ${s.leader.epoch}`];
  const standbys = s.leader.standbys || [];
  if (standbys.length) said.push(`${standbys.length} standby`);
  if (s.settling) said.push(`settling, waiting for ${s.settling.waiting_for.join(", ") || "nobody"}`);
  if (s.paused) said.push("paused");
  const line = said.join("; ");
  if ($("leader").textContent !== line) $("leader").textContent = line;
  const first = [];
  if (s.blocked) first.push(`blocked: ${s.blocked}`);
  if (s.paused) first.push(`paused: ${s.paused}`);
  if (s.catalog.error) first.push(`the catalog on disk is not in use: ${s.catalog.error}`);
  const warnings = [...first, ...s.warnings], text = JSON.stringify(warnings);
  $("s-warnings").hidden = !warnings.length;
  if ($("warnings").dataset.shown !== text) {
    $("warnings").dataset.shown = text;
    $("warnings").replaceChildren(...warnings.map((w) => el("li", w)));
  }
  table("nodes", "Nodes of the fleet", ["node", "state", "GPUs", "power", "engines"],
    s.nodes.map((n) => [n.node, el("span", n.state, kind(n.state)), gpuCell(n.gpus), watts(n), String(n.engines)]),
    "No node has registered: start llmgw agent on a box.");
  table("models", "Models of the catalog", ["model", "state", "ready", "waiting", "sleeps", "why"],
    s.models.map((m) => [m.name, el("span", m.state, kind(m.state)), `${m.ready} of ${m.min}–${m.max}`,
      m.waiting ? String(m.waiting) : "", m.idle_until ? m.idle_until.slice(11, 19) : "", m.why || ""]),
    "The catalog has no models.");
  table("replicas", "Engines that run", ["replica", "model", "state", "node", "requests", "age", "where"],
    s.replicas.map((r) => [r.replica, r.model, el("span", r.breaker === "open" ? `${r.state}, breaker open` : r.state,
      r.breaker === "open" ? "bad" : kind(r.state)), r.shards.map((x) => `${x.node}:${x.port}`).join(" "),
      String(r.in_flight), ago(r.since), r.shards.map(where).filter(Boolean).join("; ")]),
    "No engine runs.");
  $("s-stops").hidden = !s.stops_pending.length;
  table("stops", "Ends that are coming", ["engine", "node", "when", "why"],
    s.stops_pending.map((x) => [x.shard, x.node, x.at ? x.at.slice(11, 19) : "held back", x.why]), "");
}

function where(shard) {
  if (shard.error) return shard.error;
  if (shard.progress !== null && shard.state === "loading") return `${Math.round(shard.progress * 100)} %`;
  const c = shard.compute;
  if (!c || !c.device) return "";
  return c.layers_total ? `${c.device} ${c.layers_gpu}/${c.layers_total} layers` : c.device;
}

function showPlan(p) {
  // One that has ended is no engine that goes on, and none that is disturbed.
  const there = p.shards.filter((x) => x.verdict !== "terminal");
  const moved = there.filter((x) => !["adopt", "join", "keep", "hold"].includes(x.verdict));
  const kept = there.length - moved.length, n = p.disturbs;
  $("summary").textContent = `${kept} of ${there.length} engines go on untouched; ` +
    `${n === 1 ? "1 engine" : `${n} engines`} would be disturbed.${p.complete ? "" : " Not every node answered."}`;
  table("plan", "What a restart of control would do", ["engine or model", "what", "node", "why"],
    [...moved.map((x) => [x.shard, el("span", x.verdict, kind(x.verdict)), x.node, x.why]),
      ...p.actions.map((a) => [a.replica || a.model, el("span", a.action, kind(a.action)), a.node || "", a.why])],
    "Nothing would change.");
}

function showEvents(e) {
  table("events", "The latest events", ["when", "what", "why"],
    e.slice(-EVENTS).reverse().map((x) => [x.at.replace("T", " ").slice(0, 19), x.kind, x.why]), "Nothing yet.");
}

async function get(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store" });
  const found = await answer.json();
  if (answer.ok) return found;
  const error = new Error((found.error || {}).message || `control answered ${answer.status}`);
  error.status = answer.status;
  throw error;
}

// What has the focus when it vanishes leaves it nowhere: by keyboard one would go on from the top, or from anywhere.
function admitted() {
  const typing = $("ask").contains(document.activeElement);
  $("ask").hidden = true;
  if (typing) $("fleet").focus();
}

async function look() {
  if (held || document.hidden) return;
  const asked = token;
  try {
    showStatus(await get("/api/v1/status"));
    if (round++ % PLAN_EVERY === 0) {
      showPlan(await get("/api/v1/plan"));
      showEvents((await get("/api/v1/events")).events);
    }
    heard = Date.now();
    document.body.className = "";
    admitted();
    $("forget").hidden = !token;
  } catch (error) {
    round = 0;
    if (error.status === 401) {
      if (asked !== token) return; // the refusal of a token that is not ours any more
      $("refused").textContent = token ? error.message : "";
      $("leader").textContent = "a token is needed";
      if ($("ask").hidden) { $("ask").hidden = false; $("token").focus(); }
      return;
    }
    const since = heard ? `; this is the picture of ${new Date(heard).toLocaleTimeString()}` : "";
    $("leader").textContent = `control does not answer (${error.message})${since}`;
    document.body.className = "old";
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("token").value = "";
  look();
});
$("forget").addEventListener("click", () => { sessionStorage.removeItem("token"); location.reload(); });
$("hold").addEventListener("click", () => {
  held = !held;
  $("hold").setAttribute("aria-pressed", String(held));
  look();
});
document.addEventListener("visibilitychange", look);

async function forever() {
  await look();
  setTimeout(forever, EVERY_MS);
}
forever();
