// Keys, copying, and news of a run that goes on. Every page works without it.
"use strict";

const EVERY_MS = 5000;

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
    Enter: () => event.target === document.body && follow(document.querySelector(".current a")),
  }[event.key];
  if (!pressed) return;
  if (event.key !== "Enter") event.preventDefault();
  pressed();
});

document.addEventListener("click", async (event) => {
  if (event.target.matches("[data-help]")) document.getElementById("help").showModal();
  if (event.target.matches("[data-copy]")) {
    await navigator.clipboard.writeText(event.target.nextElementSibling.textContent);
    event.target.textContent = "copied";
  }
});

async function refresh(live) {
  const answer = await fetch(window.location, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("main > div");
  if (fresh && !live.contains(document.activeElement) && window.getSelection().isCollapsed) {
    live.innerHTML = fresh.innerHTML;
    if (!fresh.hasAttribute("data-live")) live.removeAttribute("data-live");
  }
}

async function count(newer) {
  const answer = await fetch(newer.dataset.newer, { headers: { Accept: "application/json" } });
  if (!answer.ok) return;
  const found = (await answer.json()).newer;
  newer.classList.toggle("some", found > 0);
  newer.querySelector("a").textContent = found ? `${found} newer: show them` : "";
}

setInterval(() => {
  if (document.hidden) return;
  const live = document.querySelector("[data-live]");
  const newer = document.querySelector("[data-newer]");
  const quiet = () => {}; // the database or the viewer is away; the next look may find it again
  if (live) refresh(live).catch(quiet);
  if (newer) count(newer).catch(quiet);
}, EVERY_MS);
