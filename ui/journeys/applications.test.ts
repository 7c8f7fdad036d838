// What people do with the page of a recording of applications.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Page } from "playwright-core";
import { done, faults, go, place, rows } from "./steps.ts";
import { WRITTEN, World, type Service } from "./world.ts";

const world = new World();
let router: Service;
let applications: Service;
let both: Service;

before(async () => {
  await world.begin();
  router = await world.view(world.router("router", 5_000, 400));
  applications = await world.view(world.applications());
  both = await world.view(world.applications("path,app"));
});
after(() => world.end());

describe("applications", () => {
  const lists = (page: Page) => rows(page, "Sockets");

  test("a recording of applications opens with them: all in sum, then one, over time and at each layer", async () => {
    const page = await world.open(applications);
    await lists(page).first().waitFor();
    await page.getByRole("heading", { name: "All sockets in sum" }).waitFor();
    await page.getByRole("img", { name: /^All sockets in sum over time: Application/ }).waitFor();
    // The most bytes first: who wrote.
    assert.match(await lists(page).first().innerText(), /python3[\s\S]*10\.77\.1\.1[\s\S]*10\.77\.1\.2:7001/);
    await lists(page).first().click();
    const plot = page.getByRole("img", { name: /^python3, TCP 10\.77\.1\.1:\d+ to 10\.77\.1\.2:7001 over time: .*Window.*Round trip/ });
    await plot.waitFor();
    assert.match(await place(page), /socket=\d+/);
    await page.getByRole("tab", { name: "At each layer" }).click();
    const row = (name: RegExp) => page.getByRole("region", { name: "Sizes at each layer" }).getByRole("row").filter({ has: page.getByRole("cell", { name }) });
    const bytes = async (name: RegExp) => Number((await row(name).getByRole("cell").nth(2).innerText()).replaceAll(",", ""));
    assert.equal(await bytes(/^application -> socket$/), WRITTEN);
    assert.equal(await bytes(/^acknowledged$/), WRITTEN);
    await page.getByRole("heading", { name: "What held it back" }).waitFor();
    await done(page);
  });

  test("a piece of time by keys and by mouse, and its words", async () => {
    const page = await world.open(applications);
    await lists(page).first().click();
    const plot = page.getByRole("img", { name: /over time: .*Window/ });
    await plot.focus();
    for (const key of ["w", "w", "d"]) await page.keyboard.press(key);
    await page.waitForFunction(() => /time=\d+-\d+/.test(location.hash));
    const [, from, to] = /time=(\d+)-(\d+)/.exec(await place(page))!.map(Number);
    await page.keyboard.press("0");
    await page.waitForFunction(() => !/time=/.test(location.hash));
    const box = (await plot.boundingBox())!;
    await page.mouse.move(box.x + 200, box.y + 150);
    await page.mouse.down();
    // Nearly all: on a busy machine what is looked for below may be anywhere.
    await page.mouse.move(box.x + box.width * 0.9, box.y + 150, { steps: 3 });
    await page.mouse.up();
    await page.waitForFunction(() => /time=\d+-\d+/.test(location.hash));
    assert.doesNotMatch(await place(page), new RegExp(`time=${from}-${to}`));
    await page.getByRole("tab", { name: "Over time" }).focus();
    await page.keyboard.press("ArrowRight");
    const table = page.getByRole("region", { name: "Over time, as a table" });
    await table.getByRole("columnheader", { name: "Held back by" }).waitFor();
    assert.equal(await table.getByRole("row").count(), 61);
    await page.getByRole("button", { name: /chosen/ }).click();
    await table.getByText(/failed|zero window/).first().waitFor();
    await done(page);
  });

  test("without packets every view says so, whatever filter was left from before", async () => {
    const page = await world.open(applications);
    for (const view of ["packets", "time", "phases", "functions"]) {
      await page.evaluate((v) => (location.hash = `#/${v}?where=tcp`), view);
      await page.getByText("There is no packet in this log").waitFor();
      await page.getByText("It is a recording of applications").waitFor();
    }
    await done(page);
  });

  test("from a socket to why it is slow, to a write, to its packets, and from a packet back to the write", async () => {
    const page = await world.open(both);
    await go(page, "Applications");
    await lists(page).first().click();
    await page.getByRole("tab", { name: "Why slow" }).click();
    const stages = page.getByRole("region", { name: "Stages" });
    await stages.getByRole("row").nth(1).waitFor();
    const socket = /socket=(\d+)/.exec(await place(page))![1]!;
    const why = world.asked(both, "why", socket) as { first: string; stages: { stage: string; share: number }[] };
    assert.deepEqual((await stages.locator("tbody tr td:first-child").allTextContents()).map((t) => t.trim()), why.stages.map((s) => s.stage));
    const bar = page.getByRole("img", { name: /^Stages: / });
    const widths = await bar.locator("i").evaluateAll((all) => all.map((i) => i.getBoundingClientRect().width / i.parentElement!.getBoundingClientRect().width));
    why.stages.filter((s) => s.share > 0.01).forEach((s) => assert.ok(widths.some((w) => Math.abs(w - s.share) < 0.02), `${s.stage} ${s.share} of ${widths}`));
    await page.getByRole("tab", { name: "Writes and packets" }).click();
    const slow = page.getByRole("table", { name: "Writes" });
    await slow.getByRole("button").first().click();
    await page.waitForFunction(() => /call=\d+/.test(location.hash));
    const call = /call=(\d+)/.exec(await place(page))![1]!;
    const write = world.asked(both, "app", "--write", call) as { packets: { packet_id: number }[] };
    const carried = page.getByRole("region", { name: "Packets of this write" });
    await carried.getByRole("link").first().waitFor();
    assert.deepEqual((await carried.getByRole("link").allInnerTexts()).map(Number), write.packets.map((p) => p.packet_id));
    await carried.getByRole("link").first().click();
    await page.getByRole("heading", { name: `Packet ${write.packets[0]!.packet_id}` }).waitFor();
    await page.getByText("Written by").first().waitFor();
    await page.getByRole("region", { name: "Facts of the packet" }).getByRole("link", { name: call, exact: true }).click();
    await page.getByRole("heading", { name: `Write ${call}` }).waitFor();
    assert.match(await place(page), new RegExp(`#/apps.*socket=${socket}.*call=${call}`));
    await page.getByRole("link", { name: "All packets of this socket" }).click();
    await rows(page, "Packets").first().waitFor();
    assert.match(decodeURIComponent(await place(page)), new RegExp(`where=socket == ${socket}`));
    await done(page);
  });

  test("a log without applications says how to record them", async () => {
    const page = await world.open(router);
    await go(page, "Applications");
    await page.getByText("kpat record --profile app").waitFor();
    await done(page);
  });

  for (const colorScheme of ["light", "dark"] as const)
    test(`nothing of it has a fault that axe finds, ${colorScheme}`, async () => {
      const page = await world.open(applications, "", { colorScheme });
      await lists(page).first().click();
      for (const tab of ["Over time", "As a table", "At each layer", "Why slow", "Writes"]) {
        await page.getByRole("tab", { name: tab }).click();
        await page.waitForTimeout(400);
        assert.deepEqual(await faults(page), [], tab);
      }
      await done(page);
    });
});
