// Keys, copying, and news of a run that goes on. Every page works without it.
"use strict";

const EVERY_MS = 5000;
let paused = false;
let answered = new Date();

function steps() {
  return [...document.querySelectorAll("table.rows tbody tr, section.turn")];
}

function move(by) {
  const all = steps();
  if (!all.length) return;
  const at = all.findIndex((one) => one.classList.contains("current"));
  all.forEach((one) => one.classList.remove("current"));
  const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
  next.classList.add("current");
  next.scrollIntoView({ block: "nearest" });
}

function follow(link) {
  if (link) window.location = link.href;
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const pressed = {
    j: () => move(1),
    k: () => move(-1),
    n: () => follow(document.querySelector("a[rel=next]")),
    p: () => follow(document.querySelector("a[rel=prev]")),
    "/": () => (document.querySelector(".filters input, .filters select") || document.body).focus(),
    "?": () => document.getElementById("help").showModal(),
    Enter: () => event.target === document.body && follow(document.querySelector("tr.current a")),
  }[event.key];
  if (!pressed) return;
  if (event.key !== "Enter") event.preventDefault();
  pressed();
});

document.addEventListener("click", async (event) => {
  const target = event.target;
  if (target.matches("[data-help]")) document.getElementById("help").showModal();
  if (target.matches("[data-pause]")) {
    paused = !paused;
    target.textContent = paused ? "go on" : "pause";
  }
  if (target.matches("[data-copy]")) target.textContent = (await copied(target.nextElementSibling)) ? "copied" : "selected";
});

// A page that came over plain HTTP from another machine may not write to the clipboard.
async function copied(statement) {
  try {
    await navigator.clipboard.writeText(statement.textContent);
    return true;
  } catch {
    window.getSelection().selectAllChildren(statement);
    return false;
  }
}

async function refresh(live) {
  const answer = await fetch(window.location, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("main > div");
  if (!answer.ok || !fresh) throw new Error(page.querySelector("h1")?.textContent || answer.statusText);
  if (live.contains(document.activeElement) || !window.getSelection().isCollapsed) return;
  const at = steps().findIndex((one) => one.classList.contains("current"));
  live.innerHTML = fresh.innerHTML;
  if (at >= 0) steps()[at]?.classList.add("current");
  if (!fresh.hasAttribute("data-live")) live.removeAttribute("data-live");
}

async function count(newer) {
  const answer = await fetch(newer.dataset.newer, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error((await answer.json()).error);
  const found = (await answer.json()).newer;
  newer.classList.toggle("some", found > 0);
  const many = found >= Number(newer.dataset.most) ? `${found} or more` : found;
  newer.querySelector("a").textContent = found ? `${many} newer: show them` : "";
}

async function news() {
  if (document.hidden || paused) return;
  const live = document.querySelector("[data-live]");
  const newer = document.querySelector("[data-newer]");
  const away = document.getElementById("away");
  try {
    if (live) await refresh(live);
    if (newer) await count(newer);
    away.hidden = true;
    answered = new Date();
  } catch (error) {
    away.textContent = `Not up to date since ${answered.toLocaleTimeString()}: ${error.message}`;
    away.hidden = false;
  }
}

setInterval(news, EVERY_MS);
