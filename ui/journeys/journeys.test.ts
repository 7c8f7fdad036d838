// What people do with the page, from opening it to what a stranger's data or page could do to them.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, test } from "node:test";
import { done, faults, filter, go, place, rows, total } from "./steps.ts";
import { COMM, MARKUP, World, type Service } from "./world.ts";

const world = new World();
let router: Service;
let recorded: Service;
let overrun: Service;

before(async () => {
  await world.begin();
  const log = world.router("router", 50_000, 4000);
  const other = world.router("other", 24_000, 2000);
  router = await world.view(log, "--compare", other);
  recorded = await world.view(world.recorded());
  overrun = await world.view(world.overrun("overrun", "other", "router"));
});
after(() => world.end());

const VIEWS = ["Packets", "Packet", "Time", "Functions", "Phases", "Applications", "Trust", "Events"];

describe("packets", () => {
  test("opens with the list; the token is gone from the address", async () => {
    const page = await world.open(router);
    await rows(page).first().waitFor();
    // The list grows while the log is being read.
    await page.waitForFunction(() => Number(document.querySelector("#app [role=grid]")?.getAttribute("aria-rowcount")) - 1 >= 2000);
    assert.doesNotMatch(await page.evaluate(() => location.href), /token/);
    await page.getByText(/matched/).first().waitFor();
    await done(page);
  });

  test("a good filter narrows, a bad one says where it is wrong and changes nothing", async () => {
    const page = await world.open(router);
    await rows(page).first().waitFor();
    const all = await total(page);
    await page.keyboard.press("/");
    await page.keyboard.type("udp");
    await page.keyboard.press("Enter");
    await page.waitForFunction((n) => Number(document.querySelector("#app [role=grid]")?.getAttribute("aria-rowcount")) - 1 < n, all);
    const udp = await total(page);
    assert.ok(udp > 0 && udp < all, `${udp} of ${all}`);
    assert.match(await place(page), /where=udp/);
    await filter(page).fill("udp and nonsense == 3");
    await page.keyboard.press("Enter");
    const alert = page.getByRole("alert");
    await alert.waitFor();
    assert.match(await alert.innerText(), /nonsense/);
    assert.equal(await total(page), udp);
    await page.getByRole("button", { name: "Clear the filter" }).click();
    await page.waitForFunction((n) => Number(document.querySelector("#app [role=grid]")?.getAttribute("aria-rowcount")) - 1 === n, all);
    await done(page);
  });

  test("the field is completed", async () => {
    const page = await world.open(router);
    await filter(page).click();
    await page.keyboard.type("path_t");
    const option = page.getByRole("option").filter({ hasText: "path_time" }).first();
    await option.waitFor();
    await page.keyboard.press("Tab");
    assert.match(await filter(page).inputValue(), /path_time/);
    await done(page);
  });

  test("a chosen packet stands beside every view, and back and forward work", async () => {
    const page = await world.open(router);
    await rows(page).nth(3).click();
    await page.getByRole("heading", { name: /^Packet \d+$/ }).waitFor();
    const chosen = /packet=(\d+)/.exec(await place(page))?.[1];
    assert.ok(chosen);
    for (const view of ["Functions", "Phases", "Trust", "Events", "Packet"]) {
      await go(page, view);
      await page.getByRole("heading", { name: `Packet ${chosen}`, exact: true }).waitFor();
    }
    await page.goBack();
    await page.getByRole("heading", { name: "Events", exact: true }).waitFor({ state: "attached" });
    await page.goForward();
    await page.getByRole("grid", { name: "Calls of this packet" }).waitFor();
    assert.ok((await rows(page, "Calls of this packet").count()) > 5);
    await done(page);
  });

  test("a link opens in a second tab", async () => {
    const page = await world.open(router);
    await rows(page).first().waitFor();
    const second = await page.context().newPage();
    await second.goto(`${router.origin}/#/trust`);
    await second.getByText(/of the packets are explained\.$/).waitFor();
    await done(page);
  });

  test("times of day are the program's, and a filter takes them", async () => {
    const page = await world.open(recorded);
    await rows(page).first().waitFor();
    await page.getByLabel("time of day (UTC)").check();
    await page.getByRole("columnheader", { name: /Time UTC/ }).waitFor();
    const times = world.utc(recorded);
    await page.waitForFunction(() => /^\d\d:\d\d:\d\d\.\d{6}$/.test(document.querySelector(".table-window .row")?.children[1]?.textContent ?? ""));
    const cells = await rows(page).evaluateAll((all) => all.map((r) => r.children[1]!.textContent!));
    assert.deepEqual(cells.slice(0, 5), times.slice(0, 5).map((t) => t.slice(0, 15)));
    // Behind the longest pause: `after` takes what is alive then, and one packet may outlive the beginning of the next.
    const seconds = times.map((t) => t.split(":").reduce((sum, part) => sum * 60 + Number(part), 0));
    const pause = (i: number) => seconds[i]! - seconds[i - 1]!;
    const later = times[seconds.map((_, i) => i).slice(1).reduce((best, i) => (pause(i) > pause(best) ? i : best))]!;
    await filter(page).fill(`after ${later}`);
    await filter(page).press("Enter");
    await page.waitForFunction((n) => Number(document.querySelector("[role=grid][aria-label=Packets]")?.getAttribute("aria-rowcount")) - 1 < n, times.length);
    assert.equal(await total(page), times.filter((t) => t >= later).length);
    await done(page);
  });

  test("behind another port, as ssh -L makes it, the page works; under another name it does not", async () => {
    const tunnel = await world.tunnel(recorded);
    const page = await world.open({ ...recorded, address: recorded.address.replace(recorded.origin, tunnel.origin), origin: tunnel.origin });
    await rows(page).first().waitFor();
    await done(page);
    const named = await world.status(`${tunnel.origin}/`, "evil.example:80");
    assert.equal(named, 421);
    tunnel.end();
  });

  test("sorted by path time, the longest comes first", async () => {
    const page = await world.open(router);
    await rows(page).first().waitFor();
    const head = page.getByRole("columnheader", { name: /Path time/ });
    await head.getByRole("button").click();
    await page.locator('[aria-sort="descending"]').waitFor();
    await page.waitForTimeout(200);
    const times = await rows(page).evaluateAll((all) => all.slice(0, 5).map((r) => r.querySelectorAll("[role=gridcell]")[8]?.textContent ?? ""));
    const values = times.map((t) => parseFloat(t) * (/ms/.test(t) ? 1000 : 1));
    assert.deepEqual(values, [...values].sort((a, b) => b - a));
    await done(page);
  });

  test("a frame without a packet says why, and leads to its flow", async () => {
    const page = await world.open(overrun);
    const list = page.getByRole("grid", { name: "Packets", exact: true });
    await rows(page).first().waitFor();
    await page.getByText(/reading the packets/).waitFor({ state: "detached" });
    await list.focus();
    // The last row is not there yet: it is opened when it is.
    await page.keyboard.press("End");
    const head = page.getByRole("heading", { name: /^Frame \d+$/ });
    await head.waitFor();
    await page.getByText(/after the recording had ended/).waitFor();
    await page.getByText("IPv4", { exact: true }).first().waitFor();
    assert.deepEqual(await faults(page), []);
    const chosen = await place(page);
    assert.match(chosen, /frame=0\.\d+/);
    // By its address it is found again, in the list as well.
    await page.reload();
    await head.waitFor();
    await page.locator(".row.current").waitFor();
    await page.getByRole("button", { name: "Packets between the same two" }).click();
    await page.waitForFunction(() => /where=ip.addr/.test(decodeURIComponent(location.hash)));
    await page.getByRole("button", { name: "Close the frame" }).click();
    await head.waitFor({ state: "detached" });
    await done(page);
  });

  test("columns are made wider by mouse and keys, and stay so", async () => {
    const page = await world.open(router);
    await rows(page).first().waitFor();
    const width = async (title: RegExp) => Math.round((await page.getByRole("columnheader", { name: title }).boundingBox())!.width);
    const grip = (title: string) => page.getByRole("separator", { name: `Width of ${title}`, exact: true });
    const drag = async (title: string, by: number) => {
      const box = (await grip(title).boundingBox())!;
      await page.mouse.move(box.x + 3, box.y + 8);
      await page.mouse.down();
      await page.mouse.move(box.x + 3 + by, box.y + 8, { steps: 5 });
      await page.mouse.up();
    };
    const source = await width(/^Source/);
    await drag("Source", 50);
    assert.equal(await width(/^Source/), source + 50);
    assert.equal(await page.locator('[aria-sort="ascending"], [aria-sort="descending"]').count(), 1, "a drag sorts nothing");
    // Behind the flexible column the left edge is the one that moves.
    const verdict = await width(/^Verdict/);
    await drag("Verdict", 20);
    assert.equal(await width(/^Verdict/), verdict - 20);
    await page.getByRole("columnheader", { name: /^Destination/ }).getByRole("button").focus();
    const destination = await width(/^Destination/);
    await page.keyboard.press("Shift+ArrowRight");
    await page.keyboard.press("Shift+ArrowRight");
    assert.equal(await width(/^Destination/), destination + 16);
    await page.reload();
    await rows(page).first().waitFor();
    assert.deepEqual([await width(/^Source/), await width(/^Destination/)], [source + 50, destination + 16]);
    await grip("Source").dblclick();
    assert.equal(await width(/^Source/), source);
    await drag("Source", 3000);
    assert.ok((await width(/^Info/)) >= 140, "the flexible column keeps its least");
    await done(page);
  });

  test("brushing the strip chooses a piece of time", async () => {
    const page = await world.open(router);
    await rows(page).first().waitFor();
    const all = await total(page);
    const box = (await page.locator(".strip canvas").boundingBox())!;
    await page.mouse.move(box.x + box.width * 0.3, box.y + 10);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 10, { steps: 4 });
    await page.mouse.up();
    await page.waitForFunction((n) => Number(document.querySelector("#app [role=grid]")?.getAttribute("aria-rowcount")) - 1 < n, all);
    assert.match(await place(page), /time=\d+-\d+/);
    await page.getByRole("button", { name: /chosen/ }).click();
    await page.waitForFunction((n) => Number(document.querySelector("#app [role=grid]")?.getAttribute("aria-rowcount")) - 1 === n, all);
    await done(page);
  });
});

describe("functions", () => {
  test("reverse look-up: from a function to one of its packets", async () => {
    const page = await world.open(router, "#/functions");
    await page.getByRole("searchbox", { name: "Search functions" }).fill("ip_forward");
    await rows(page, "Functions").filter({ hasText: /^ip_forward(?!_)/ }).first().click();
    await page.getByRole("heading", { name: "ip_forward", exact: true }).waitFor();
    await rows(page, "Calls of this function, longest first").first().click();
    await page.getByRole("heading", { name: /^Packet \d+$/ }).waitFor();
    await page.locator(".is-here").first().waitFor();
    assert.match(await page.locator(".is-here .name").first().innerText(), /^ip_forward$/);
    await page.getByRole("button", { name: "Its packets" }).click();
    assert.match(decodeURIComponent(await place(page)), /where=func == "ip_forward"/);
    await rows(page).first().waitFor();
    await done(page);
  });

  test("thresholds leave out what was quicker; a threshold without unit is refused", async () => {
    const page = await world.open(router, "#/functions");
    await rows(page, "Functions").first().waitFor();
    const all = await total(page, "Functions");
    const slower = page.getByLabel("slower than");
    await slower.fill("3500ns");
    await slower.press("Enter");
    await page.waitForFunction((n) => Number(document.querySelector('[aria-label="Functions"][role=grid]')?.getAttribute("aria-rowcount")) - 1 < n, all);
    assert.ok((await total(page, "Functions")) > 0);
    await slower.fill("3500");
    await page.getByRole("alert").filter({ hasText: "a time such as" }).waitFor();
    await done(page);
  });

  test("the flame graph by keys, and as a table", async () => {
    const page = await world.open(router, "#/functions");
    await page.getByRole("tab", { name: "Flame graph" }).click();
    const picture = page.getByRole("img", { name: /Flame graph/ });
    await picture.waitFor();
    await picture.focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Whole picture" }).click();
    await page.getByRole("checkbox", { name: "as table" }).check();
    assert.ok((await page.getByRole("region", { name: "Places by self time" }).getByRole("row").count()) > 5);
    await done(page);
  });

  test("two logs compared, with intervals", async () => {
    const page = await world.open(router, "#/functions");
    await page.getByRole("tab", { name: /Compared with/ }).click();
    const table = page.getByRole("region", { name: "Comparison" });
    await table.getByRole("row").nth(3).waitFor();
    assert.match(await table.innerText(), /ip_forward/);
    await done(page);
  });
});

describe("phases, trust, events", () => {
  test("phases in sum, drilled down to a function", async () => {
    const page = await world.open(router, "#/phases");
    const phase = page.getByRole("button", { name: /network/i }).first();
    await phase.click();
    assert.equal(await phase.getAttribute("aria-expanded"), "true");
    await rows(page, "Phases packet by packet").first().waitFor();
    await done(page);
  });

  test("where the time went: parts and functions as kpat time has them, and on to a function", async () => {
    const page = await world.open(router, "#/time");
    const region = page.getByRole("region", { name: "Where the time went" });
    await region.waitFor();
    const cells = (name: string) => region.getByRole("row").filter({ has: page.getByRole("cell", { name, exact: true }) }).first().getByRole("cell");
    const times = world.time(router);
    assert.equal(Number((await cells("path").nth(1).innerText()).replaceAll(",", "")), times.path.count);
    const most = times.functions[0]!;
    await region.getByRole("button", { name: most.function, exact: true }).waitFor();
    assert.equal(Number((await cells(most.function).nth(2).innerText()).replaceAll(",", "")), most.calls);
    await region.getByRole("button", { name: most.function, exact: true }).click();
    await page.getByRole("region", { name: `Function ${most.function}` }).waitFor();
    await done(page);
  });

  test("path times over time: a packet by keys; a bar of the histogram lists its packets", async () => {
    const page = await world.open(recorded, "#/time");
    await page.getByRole("img", { name: /^Path times over time: half of \d+ packets/ }).focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => /packet=\d+/.test(location.hash));
    await page.getByRole("img", { name: /^Histogram of path times/ }).focus();
    await page.keyboard.press("ArrowRight");
    const counted = Number(/^([\d,]+) packet/.exec((await page.locator(".tip").innerText()).trim())![1]!.replaceAll(",", ""));
    await page.keyboard.press("Enter");
    await rows(page).first().waitFor();
    assert.match(decodeURIComponent(await place(page)), /packets\?where=path_time >= \d+ns and path_time < \d+ns/);
    assert.equal(await total(page), counted);
    await done(page);
  });

  test("pictures over time choose the page's piece of time, by keys and by hand", async () => {
    for (const [view, name] of [["time", /^Path times over time/], ["events", /^Events over time/]] as const) {
      const page = await world.open(recorded, `#/${view}`);
      const picture = page.getByRole("img", { name });
      await picture.focus();
      for (const key of ["w", "0", "w", "w"]) {
        const was = await place(page);
        await page.keyboard.press(key);
        await page.waitForFunction(([was, some]) => location.hash !== was && /time=\d+-\d+/.test(location.hash) === some, [was, key !== "0"] as const);
      }
      const [, from, to] = /time=(\d+)-(\d+)/.exec(await place(page))!.map(Number);
      const box = (await picture.boundingBox())!;
      await page.mouse.move(box.x + box.width * 0.5, box.y + 30);
      await page.mouse.down();
      await page.mouse.move(box.x + box.width * 0.7, box.y + 30, { steps: 3 });
      await page.mouse.up();
      await page.waitForFunction((was) => !location.hash.includes(was), `time=${from}-${to}`);
      const [, a, b] = /time=(\d+)-(\d+)/.exec(await place(page))!.map(Number);
      assert.ok(a! >= from! && b! <= to! && b! - a! < (to! - from!) / 3, `${view}: ${from}-${to}, then ${a}-${b}`);
      // By chance there is nothing in it, and no picture to press a key in: what leads back does not go.
      await page.getByTitle("Show all of the time again").first().click();
      await picture.waitFor();
      await page.waitForFunction(() => !/time=/.test(location.hash));
      await done(page);
    }
  });

  test("trust says how far a clock may be off, and whether packets add up", async () => {
    const page = await world.open(router, "#/trust");
    const clocks = page.getByRole("region", { name: "Clocks" });
    await clocks.waitFor();
    assert.match(await clocks.innerText(), /± \d/);
    await page.getByText(/of the packets are explained\.$/).waitFor();
    await done(page);
  });

  test("a log of tracepoints has no columns of durations, and no flame graph without a word", async () => {
    const page = await world.open(recorded, "#/functions");
    await rows(page, "Functions").first().waitFor();
    const heads = await page.getByRole("grid", { name: "Functions" }).getByRole("columnheader").allInnerTexts();
    const timed = heads.filter((h) => /Self|Total|Median|p99|Max|Distribution/.test(h));
    // Where function probes work, durations are there.
    const tracepoints = /tracepoint/.test(await page.locator("footer").innerText());
    assert.equal(timed.length > 0, !tracepoints, heads.join(", "));
    await page.getByRole("tab", { name: "Flame graph" }).click();
    if (tracepoints) await page.getByText("A flame graph needs durations").waitFor();
    // Nothing has calls: the list counts tracepoints in their place.
    await page.setViewportSize({ width: 1440, height: 900 });
    await go(page, "Packets");
    await page.getByRole("columnheader", { name: tracepoints ? "Points" : "Calls" }).waitFor();
    assert.equal(await page.getByRole("columnheader", { name: tracepoints ? "Calls" : "Points" }).count(), 0);
    await done(page);
  });

  test("all events are counted, however many are drawn one by one", async () => {
    const page = await world.open(recorded, "#/events");
    await rows(page, "Events").first().waitFor();
    // The list of the program itself.
    const drops = world.events(recorded, "drop");
    assert.ok(drops.length > 0);
    const chips = await page.locator(".chip").allInnerTexts();
    const counted = chips.map((c) => Number(/([\d,]+)/.exec(c)![1]!.replace(/,/g, ""))).reduce((a, b) => a + b, 0);
    const reasons = new Map<string, number>();
    for (const d of drops) reasons.set(`${d.reason} ${d.place}`, (reasons.get(`${d.reason} ${d.place}`) ?? 0) + 1);
    const most = [...reasons.values()].sort((a, b) => b - a).slice(0, chips.length).reduce((a, b) => a + b, 0);
    assert.equal(counted, most);
    await done(page);
  });

  test("a drop, by reason, to its packets", async () => {
    const page = await world.open(recorded, "#/events");
    const chip = page.locator(".chip").first();
    await chip.waitFor();
    const reason = (await chip.innerText()).trim();
    await chip.click();
    await rows(page).first().waitFor();
    assert.match(decodeURIComponent(await place(page)), /packets\?where=drop == /);
    assert.ok((await total(page)) >= 1, reason);
    await rows(page).first().click();
    const dropped = page.getByRole("region", { name: "Facts of the packet" }).locator("details", { hasText: "Dropped" });
    await dropped.waitFor();
    // Its name, what it means, and where to look.
    const words = (await dropped.innerText()).split("\n").map((line) => line.trim()).filter((line) => line);
    assert.ok(words.length === 4 && words.slice(2).every((line) => line.endsWith(".")), words.join(" | "));
    await done(page);
  });
});

describe("a recording that goes on", () => {
  test("is followed, and what was chosen stays", async () => {
    const service = await world.view(await world.recording(14));
    const page = await world.open(service);
    await page.getByText("live", { exact: true }).waitFor();
    await rows(page).first().waitFor();
    await rows(page).first().click();
    const heading = page.getByRole("heading", { name: /^Packet \d+$/ });
    const chosen = await heading.innerText();
    const before = await total(page);
    await page.waitForFunction((n) => Number(document.querySelector("[role=grid][aria-label=Packets]")?.getAttribute("aria-rowcount")) - 1 > n, before, { timeout: 20_000 });
    assert.equal(await heading.innerText(), chosen);
    await done(page);
    service.end();
  });
});

describe("keys, eyes, colours", () => {
  test("everything by keyboard", async () => {
    const page = await world.open(router);
    await rows(page).first().waitFor();
    await page.getByRole("grid", { name: "Packets" }).focus();
    // Quicker than anything is drawn, each counts.
    await page.evaluate(() => {
      const grid = document.querySelector("[role=grid][aria-label=Packets]")!;
      for (let i = 0; i < 5; i++) grid.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    });
    await page.getByRole("heading", { name: /^Packet \d+$/ }).waitFor();
    await page.waitForTimeout(300);
    assert.equal(await page.locator("[role=grid][aria-label=Packets] .current").getAttribute("aria-rowindex"), "6");
    await page.keyboard.press("PageDown");
    await page.keyboard.press("End");
    await page.waitForFunction(() => document.querySelector("[role=grid][aria-label=Packets] .current")?.getAttribute("aria-rowindex") === document.querySelector("[role=grid][aria-label=Packets]")?.getAttribute("aria-rowcount"));
    await page.keyboard.press("Home");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Packet", exact: true }).waitFor({ state: "attached" });
    await page.getByRole("img", { name: /^Timeline/ }).focus();
    const wide = await page.locator(".timeline .bar-words").innerText();
    for (const key of ["w", "w", "d", "ArrowDown"]) await page.keyboard.press(key);
    assert.notEqual(await page.locator(".timeline .bar-words").innerText(), wide);
    await page.keyboard.press("4");
    await page.getByRole("heading", { name: "Functions", exact: true }).waitFor({ state: "attached" });
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog", { name: "Keys" }).waitFor({ state: "hidden" });
    await done(page);
  });

  test("in a narrow window, or a large one at 200 %, nothing stands outside", async () => {
    for (const viewport of [{ width: 390, height: 800 }, { width: 720, height: 450 }]) {
      const page = await world.open(router, "#/packets?packet=1", { viewport });
      for (const view of VIEWS) {
        await go(page, view);
        await page.waitForTimeout(50);
        const outside = await page.evaluate(() => {
          const wide = document.documentElement.scrollWidth;
          // What is cut off may be reached by scrolling in its own place.
          const reached = (el: Element | null): boolean => !!el && (/(auto|scroll)/.test(getComputedStyle(el).overflowX) || reached(el.parentElement));
          const cut = [...document.querySelectorAll("main *")].filter((el) => el.getClientRects().length > 0 && el.getBoundingClientRect().left >= innerWidth && !reached(el.parentElement) && !el.closest("svg"));
          return { wide, cut: cut.slice(0, 3).map((el) => el.outerHTML.slice(0, 120)) };
        });
        assert.deepEqual(outside, { wide: viewport.width, cut: [] }, `${view} at ${viewport.width}`);
      }
      await done(page);
    }
  });

  test("in a low window, as a large one at 200 %, each pane has room and can be scrolled to", async () => {
    const page = await world.open(router, "#/packets?packet=1", { viewport: { width: 640, height: 400 } });
    for (const view of ["Packets", "Packet"]) {
      await go(page, view);
      const panes = [page.getByRole("grid", { name: "Calls of this packet" }), page.getByRole("region", { name: "Facts of the packet" })];
      if (view === "Packets") panes.unshift(page.getByRole("grid", { name: "Packets" }));
      for (const pane of panes) {
        await pane.scrollIntoViewIfNeeded();
        const box = (await pane.boundingBox())!;
        assert.ok(box.height > 80 && box.y + 60 < 400, `${view}: ${JSON.stringify(box)}`);
      }
    }
    await done(page);
  });

  test("in a narrow window a drop's reason stands in its row", async () => {
    const reason = world.events(recorded, "drop")[0]!.reason!;
    for (const width of [640, 734, 1200]) {
      const page = await world.open(recorded, "#/events", { viewport: { width, height: 700 } });
      const row = rows(page, "Events").filter({ hasText: "drop" }).first();
      assert.ok((await row.innerText()).includes(reason), `${width}: ${await row.innerText()}`);
      await done(page);
    }
  });

  test("dark as the system says, and as chosen", async () => {
    const page = await world.open(router, "", { colorScheme: "dark" });
    const theme = () => page.locator("html").getAttribute("data-theme");
    assert.equal(await theme(), "dark");
    await page.getByRole("button", { name: /^Colours/ }).click();
    assert.equal(await theme(), "light");
    await page.reload();
    assert.equal(await theme(), "light");
    await done(page);
  });

  for (const colorScheme of ["light", "dark"] as const)
    test(`no view has a fault that axe finds, ${colorScheme}`, async () => {
      const page = await world.open(router, "", { colorScheme });
      await rows(page).nth(2).click();
      await page.getByRole("grid", { name: "Calls of this packet" }).waitFor();
      for (const view of [...VIEWS, "Functions, Flame graph", "Functions, Compared with", "Packets, nothing"]) {
        const [title, more] = view.split(", ");
        await go(page, title!);
        if (title === "Functions" && more) await page.getByRole("tab", { name: more }).click();
        if (more === "nothing") {
          await filter(page).fill("udp and arp");
          await filter(page).press("Enter");
          await page.getByText("No packet fits this filter").waitFor();
        }
        await page.waitForTimeout(250);
        assert.deepEqual(await faults(page), [], view);
      }
      await done(page);
    });
});

describe("what is hostile", () => {
  test("names that are markup stay text", async () => {
    const page = await world.open(router, "#/trust");
    await page.getByText(`${MARKUP}.pcapng`).first().waitFor();
    assert.equal(await page.locator("img").count(), 0);
    await done(page);
    const other = await world.open(recorded);
    await rows(other).first().waitFor();
    await filter(other).fill(`process == "${COMM}"`);
    await filter(other).press("Enter");
    await other.getByText(COMM).first().waitFor();
    assert.equal(await other.locator("#app [role=grid] b").count(), 0);
    await done(other);
  });

  test("a filter in a foreign link is shown and refused, never run", async () => {
    const page = await world.open(router, `#/packets?where=${encodeURIComponent("<script>hit()</script>")}`);
    await page.getByRole("alert").first().waitFor();
    assert.equal(await filter(page).inputValue(), "<script>hit()</script>");
    await done(page);
  });

  test("a foreign page cannot read the service", async () => {
    const token = new URL(router.address).hash.slice("#token=".length);
    const foreign = createServer((_, answer) => answer.setHeader("content-type", "text/html").end("<!doctype html><title>foreign</title>"));
    await new Promise<void>((up) => foreign.listen(0, "127.0.0.1", up));
    const context = await world.browser.newContext();
    try {
      const page = await context.newPage();
      await page.goto(`http://127.0.0.1:${(foreign.address() as AddressInfo).port}/`);
      const read = (headers: Record<string, string>) =>
        page.evaluate(([url, h]) => fetch(url as string, { headers: h as Record<string, string> }).then((r) => r.text(), (e: unknown) => `failed ${e}`), [`${router.origin}/api/info`, headers] as const);
      assert.match(await read({}), /^failed/);
      assert.match(await read({ "x-kpat-token": token }), /^failed/);
      const framed = await page.evaluate(async (url) => {
        const frame = document.createElement("iframe");
        frame.src = url;
        document.body.append(frame);
        await new Promise((loaded) => (frame.onload = loaded));
        try {
          return frame.contentDocument?.body.innerText ?? "";
        } catch {
          return "";
        }
      }, router.address);
      assert.equal(framed, "");
    } finally {
      await context.close();
      foreign.close();
    }
  });

  test("without the token the page says what to do", async () => {
    const context = await world.browser.newContext();
    const page = await context.newPage();
    await page.goto(router.origin);
    await page.getByRole("alert").getByText("Open the address that").waitFor();
    await context.close();
  });
});
