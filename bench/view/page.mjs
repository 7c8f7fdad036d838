// How long a reader waits: `node bench/view/page.mjs LOG.kpat [REPEATS]` opens the log with `kpat view` in headless Chromium and prints,
// in milliseconds, the least, the median and the most of each step, from the reader's act to the frame that shows its result.
//
// First paint is from the start of the navigation to the first rows on the screen; the service has just been started, so
// nothing is in memory yet. KPAT names the program, CHROMIUM the browser. Needs ui/node_modules (scripts/ui).
import { spawn } from "node:child_process";
import { createRequire } from "node:module";

const { chromium } = createRequire(new URL("../../ui/package.json", import.meta.url))("playwright-core");
const kpat = process.env.KPAT ?? "target/release/kpat";
const [log, repeats = "5"] = process.argv.slice(2);
if (!log) {
  console.error("usage: node bench/view/page.mjs LOG.kpat [REPEATS]");
  process.exit(2);
}

function view() {
  const child = spawn(kpat, ["view", log, "--no-open"], { stdio: ["ignore", "pipe", "pipe"] });
  let printed = "";
  return new Promise((up, failed) => {
    const read = (d) => {
      printed += d;
      const url = /http:\/\/127\.0\.0\.1:\d+\/#token=[\w-]+/.exec(printed);
      if (url) up({ child, address: url[0] });
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.on("exit", (code) => failed(new Error(`kpat view ended with ${code}: ${printed}`)));
  });
}

// In the page: does something, and waits for the frame after the one in which `there` became true.
const STEPS = `
  const frame = () => new Promise((f) => requestAnimationFrame(() => f(performance.now())));
  window.timed = async (act, there) => {
    const began = performance.now();
    act();
    for (;;) {
      const now = await frame();
      if (there()) return (await frame(), performance.now()) - began;
      if (now - began > 60000) throw new Error("not there after a minute: " + there);
    }
  };
  window.grid = (name) => document.querySelector('[role=grid][aria-label="' + name + '"]');
  window.count = (name) => Number(grid(name)?.getAttribute("aria-rowcount") ?? 0) - 1;
  window.ready = (name) => grid(name) && grid(name).getAttribute("aria-busy") !== "true" && grid(name).querySelector(".table-window [role=row]:not(.coming)") && !grid(name).querySelector(".coming");
  window.type = (text) => {
    const field = document.querySelector("#filter");
    field.focus();
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(field, text);
    field.dispatchEvent(new InputEvent("input", { bubbles: true }));
    field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  };
  window.key = (name, key) => grid(name).dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  window.tab = (title) => [...document.querySelectorAll("nav a")].find((a) => a.textContent === title).click();
`;
const steps = [
  ["jump to the middle (scroll bar)", "grid('Packets').scrollTop = 3e6", "ready('Packets') && grid('Packets').querySelector('[aria-rowindex]:nth-child(2)')"],
  ["jump to the last row (End)", "key('Packets', 'End')", "ready('Packets') && grid('Packets').querySelector('.current')"],
  ["next packet, with its detail (arrow)", "window.was = document.querySelector('.packet h2')?.textContent; key('Packets', 'ArrowUp')", "document.querySelector('.packet h2') && document.querySelector('.packet h2').textContent !== window.was"],
  ["filter udp", "window.was = count('Packets'); type('udp')", "count('Packets') !== window.was && ready('Packets')"],
  ["filter path_time > 20us and port == 443", "window.was = count('Packets'); type('path_time > 20us and port == 443')", "count('Packets') !== window.was && ready('Packets')"],
  ["filter by function (func ip_forward)", "window.was = location.hash; type('func ip_forward')", "location.hash !== window.was && ready('Packets')"],
  ["filter off", "window.was = location.hash; type('')", "location.hash !== window.was && ready('Packets')"],
  ["sort by path time", "[...document.querySelectorAll('.table-head button')].find((b) => b.textContent.startsWith('Path')).click()", "document.querySelector('[aria-sort=descending]') && ready('Packets')"],
  ["functions", "tab('Functions')", "ready('Functions')"],
  ["one function, its callers and calls", "key('Functions', 'ArrowDown')", "document.querySelector('.function h2') && ready('Calls of this function, longest first')"],
  ["flame graph of all calls", "[...document.querySelectorAll('[role=tab]')].find((t) => t.textContent === 'Flame graph').click()", "document.querySelector('.flame canvas')?.width > 0"],
  ["phases", "tab('Phases')", "document.querySelector('.phases-sum table')"],
  ["time", "tab('Time')", "document.querySelector('.cards')"],
  ["events", "tab('Events')", "document.querySelector('.events')"],
  ["back to packets", "tab('Packets')", "ready('Packets')"],
];

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const found = new Map();
const put = (name, ms) => found.set(name, [...(found.get(name) ?? []), ms]);
try {
  for (let i = 0; i < Number(repeats); i++) {
    const { child, address } = await view();
    const context = await browser.newContext({ viewport: { width: 1600, height: 1000 } });
    const page = await context.newPage();
    await page.addInitScript(STEPS);
    await page.goto(address);
    put("first paint", await page.evaluate("timed(() => {}, () => ready('Packets')).then(() => performance.now())"));
    put("all packets in memory", await page.evaluate("timed(() => {}, () => !document.querySelector('.bottom [role=status]')).then(() => performance.now())"));
    for (const [name, act, there] of steps) {
      put(name, await page.evaluate(`timed(() => { ${act} }, () => ${there})`));
      await page.waitForTimeout(100);
    }
    await context.close();
    child.removeAllListeners("exit");
    child.kill("SIGINT");
    await new Promise((gone) => child.on("exit", gone));
  }
} finally {
  await browser.close();
}
console.log("step\tleast ms\tmedian ms\tmost ms");
for (const [name, ms] of found) {
  ms.sort((a, b) => a - b);
  console.log([name, ms[0], ms[ms.length >> 1], ms.at(-1)].map((x) => (typeof x === "number" ? x.toFixed(0) : x)).join("\t"));
}
