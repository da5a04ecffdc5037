"use strict";
// The server draws; this only puts what changed into its place and hands on what was pressed.
const base = document.body.dataset.base;
const byId = id => document.getElementById(id);

// the token came with the address; it lives in a cookie now and should not stay in the history
if (location.search.includes("token=")) history.replaceState(null, "", location.pathname + location.hash);

// what stands in each place, so that nothing is put there again: a hover, a selection or "copied" would be lost for it
const shown = new Map([...document.querySelectorAll("[id]")].map(each => [each.id, each.innerHTML]));

function show(sections) {
  const open = new Set([...document.querySelectorAll("details[open]")].map(each => each.closest("[id]")?.id));
  for (const [id, html] of Object.entries(sections)) {
    const place = byId(id);
    if (!place) continue;
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    fresh.content.querySelectorAll(".copy").forEach(each => { each.hidden = false; });
    if (shown.get(id) === fresh.innerHTML) continue;
    shown.set(id, fresh.innerHTML);
    const logs = new Map([...place.querySelectorAll("pre.log")].map((log, at) => [at, atEnd(log) ? null : log.scrollTop]));
    place.replaceChildren(fresh.content);
    place.querySelectorAll("details").forEach(each => { each.open = open.has(each.closest("[id]")?.id); });
    place.querySelectorAll("pre.log").forEach((log, at) => { log.scrollTop = logs.get(at) ?? log.scrollHeight; });
  }
}
const atEnd = log => log.scrollHeight - log.scrollTop - log.clientHeight < 8;

function away(text) {
  const place = byId("away");
  place.textContent = text;
  place.hidden = !text;
}

const source = new EventSource(base + "events");
source.addEventListener("sections", event => {
  const sections = JSON.parse(event.data);
  away("");
  show(sections);
  if (sections.progress || sections.figures) draw_report();
  if (sections.state) ended();
  if ("buttons" in sections) byId("steering").hidden = !sections.buttons;
});
source.onerror = () => away(
  "The connection to `ridgeline watch` is lost; what you see may be old. This page comes back when it is started again " +
  "on the same port; on another, the address is the first line that it prints.");

// the whole report takes a while to draw: only where somebody looks, not too often, and not under their hand
const AGAIN_MS = 15000;
const report = byId("report");
let drawn_at = 0;
function draw_report() {
  const frame = report?.querySelector("iframe");
  if (!report?.open || frame.matches(":hover") || Date.now() - drawn_at < AGAIN_MS) return;
  drawn_at = Date.now();
  frame.onload = () => { report.dataset.drawn = "yes"; };
  frame.src = report.dataset.from;
}
report?.addEventListener("toggle", draw_report);

function answer(text, bad) {
  const place = byId("answer");
  place.textContent = text;
  place.className = bad ? "bad" : "";
}

async function tell(instruction) {
  const id = [...crypto.getRandomValues(new Uint8Array(12))].map(byte => byte.toString(16).padStart(2, "0")).join("");
  try {
    const sent = await fetch(base + "instructions", {
      method: "POST",
      headers: {"Content-Type": "application/json"},
      body: JSON.stringify({id, ...instruction}),
    });
    const said = await sent.json();
    answer(said.told, !sent.ok);
  } catch (error) {
    answer("It could not be sent: " + error.message, true);
  }
}

// what is typed is a number where it can be one, and a text otherwise
function value(text) {
  try { return JSON.parse(text); } catch { return text; }
}

document.addEventListener("click", event => {
  const button = event.target.closest("button[data-act]");
  if (!button || (button.dataset.sure && !confirm(button.dataset.sure))) return;
  const run = button.dataset.run;
  tell({act: button.dataset.act, ...(run ? {run: Number(run)} : {})});
});

document.addEventListener("submit", event => {
  event.preventDefault();
  const form = event.target, told = {act: form.dataset.act};
  const filled = [...form.querySelectorAll("[data-knob],[data-more]")].filter(field => field.value.trim() !== "");
  if (told.act === "try") {
    told.point = Object.fromEntries(filled.map(field => [field.dataset.knob, value(field.value)]));
  } else {
    for (const field of filled) {
      const typed = value(field.value);
      told[field.dataset.more] = typeof typed === "number" ? typed * Number(field.dataset.times ?? 1) : typed;
    }
  }
  tell(told);
});

// a browser's own notification, where the reader asked for it
const notify = byId("notify"), state = () => byId("state")?.querySelector(".badge")?.textContent;
const over = () => ["finished", "stopped"].includes(state());
let wanted = false;
if (notify && "Notification" in window && !over()) {
  notify.hidden = false;
  notify.onclick = async () => {
    wanted = await Notification.requestPermission() === "granted";
    notify.textContent = wanted ? "You will be notified" : "The browser does not allow it";
  };
}
function ended() {
  document.title = `${over() ? "\u2713 " : ""}${document.querySelector("h1").textContent}`;
  if (!wanted || !over()) return;
  wanted = false;
  new Notification(document.querySelector("h1").textContent, {body: byId("headline")?.innerText ?? state()});
}

document.querySelectorAll("pre.log").forEach(log => { log.scrollTop = log.scrollHeight; });
