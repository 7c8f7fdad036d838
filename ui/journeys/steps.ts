// What journeys do again and again on a page: find rows, go to a view, ask axe.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Page } from "playwright-core";

export const rows = (page: Page, table = "Packets") => page.getByRole("grid", { name: table, exact: true }).locator(".table-window [role=row]:not(.coming)");
export const place = (page: Page) => page.evaluate(() => location.hash);
export const go = (page: Page, view: string) => page.getByRole("navigation", { name: "Views" }).getByRole("link", { name: view, exact: true }).click();
export const total = async (page: Page, table = "Packets") => Number(await page.getByRole("grid", { name: table, exact: true }).getAttribute("aria-rowcount")) - 1;
export const filter = (page: Page) => page.getByRole("combobox", { name: "Filter packets" });

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** What axe finds wrong with what is on the screen. */
export async function faults(page: Page): Promise<string[]> {
  // A script tag is against the page's policy: the check comes in over the debugging connection.
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    const axe = (globalThis as unknown as { axe: { run: (root: Document) => Promise<{ violations: { id: string; nodes: { html: string; failureSummary?: string }[] }[] }> } }).axe;
    const found = await axe.run(document);
    return found.violations.map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 140)} ${n.failureSummary ?? ""}`).join(" | ")}`);
  });
}

/** Closes the page; nothing may have been complained of. */
export async function done(page: Page & { complaints: string[] }): Promise<void> {
  const complaints = page.complaints;
  await page.context().close();
  assert.deepEqual(complaints, []);
}
