// What people do with the page of recordings that are not of packets alone: handovers, and whom the CPUs worked for.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { done, faults, go, place, rows } from "./steps.ts";
import { World, type Service } from "./world.ts";

const world = new World();
let wired: Service;
let radio: Service;
let profiled: Service;

before(async () => {
  await world.begin();
  wired = await world.view(world.kept("wired/bridge.kbl"));
  radio = await world.view(world.kept("s5/record.kbl", "s5/air.pcapng"));
  profiled = await world.view(world.profiled());
});
after(() => world.end());

describe("other recordings", () => {
  test("a recording of a radio opens with its handovers, whatever a sniffer heard", async () => {
    const page = await world.open(radio);
    await page.getByRole("heading", { name: /^Handover 1: w2 lost and joined another/ }).waitFor();
    await go(page, "Packet");
    await page.getByText("There is no packet in this log").waitFor();
    await done(page);
  });

  test("a chosen handover is in the address: reload keeps it, back leaves it, its packets are one step away", async () => {
    const page = await world.open(wired, "#/handover");
    await page.getByRole("heading", { name: /^Handover 1:/ }).waitFor();
    await page.getByRole("button", { name: "2", exact: true }).first().click();
    await page.getByRole("heading", { name: /^Handover 2:/ }).waitFor();
    await page.reload();
    await page.getByRole("heading", { name: /^Handover 2:/ }).waitFor();
    assert.deepEqual(await faults(page), []);
    await page.getByRole("button", { name: "Packets in its time" }).click();
    await rows(page).first().waitFor();
    assert.match(await place(page), /^#\/packets\?time=\d+-\d+/);
    await page.goBack();
    await page.goBack();
    await page.getByRole("heading", { name: /^Handover 1:/ }).waitFor();
    await done(page);
  });

  test("processes of a profile are sorted, and the chosen one is in the address", async () => {
    const page = await world.open(profiled, "", { viewport: { width: 1440, height: 900 } });
    const table = page.locator(".profile-processes");
    await table.waitFor();
    const ran = async () => (await table.locator("tbody tr td:last-child").allInnerTexts()).map((text) => {
      const [, n, unit] = /^([\d.]+)\s*(ns|µs|ms|s)$/.exec(text.trim())!;
      return Number(n) * { ns: 1, "µs": 1e3, ms: 1e6, s: 1e9 }[unit as "s"];
    });
    await table.getByRole("button", { name: "Ran" }).click();
    await table.locator("th[aria-sort=descending]", { hasText: "Ran" }).waitFor();
    const times = await ran();
    assert.deepEqual(times, [...times].sort((a, b) => b - a));
    // No column is beyond the edge of its pane.
    assert.ok(await page.locator(".profile-left").evaluate((el) => el.querySelector(".profile-processes")!.scrollWidth <= el.clientWidth));
    await table.locator("tbody button").first().click();
    const name = await table.locator("tr.current button").innerText();
    await page.reload();
    await page.getByRole("heading", { name: `What ${name} is charged with` }).waitFor();
    assert.deepEqual(await faults(page), []);
    await done(page);
  });
});
