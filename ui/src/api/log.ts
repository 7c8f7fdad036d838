// The log that is looked at: what it is, and whether it still grows.

import { signal } from "@preact/signals";
import { moment, timeOfDay } from "../base/units.ts";
import { Refused, ask, changes } from "./ask.ts";
import { generation } from "./question.ts";
import type { Info } from "./types.ts";

export const log = signal<Info | null>(null);
export const logError = signal<Refused | null>(null);

/** Whether lists show times of day (UTC, by the device's clock) or seconds since the log's start. */
export const byClock = signal(false);

/** From its first moment to its last. */
export function wholeLog(): [number, number] {
  return [0, Math.max(1, log.value?.length_ns ?? 1)];
}

/** Time of day, UTC, `t` ns after the log's start; null where the log does not know. */
export function clockAt(t: number, date = false): string | null {
  const start = log.value?.start_wall_ns;
  if (start === null || start === undefined) return null;
  const set = log.value?.wall_steps.findLast((s) => s.at_ns <= t);
  return timeOfDay(BigInt(start) + BigInt(Math.round(t)) + BigInt(set?.ahead_ns ?? 0), date);
}

/** A time in a list, as chosen. */
export function listed(t: number): string {
  return (byClock.value && clockAt(t)) || moment(t);
}

/** The heading of such times. */
export function listedTitle(): string {
  return byClock.value && log.value?.start_wall_ns ? "Time UTC" : "Time s";
}

async function load(): Promise<void> {
  try {
    log.value = await ask<Info>("info");
    logError.value = null;
  } catch (e) {
    logError.value = e instanceof Refused ? e : new Refused(String(e), null);
  }
}

const AGAIN_MS = 2000;

/** Opens the log, and follows it while it is read into memory or still recorded. */
export async function openLog(): Promise<void> {
  await load();
  while (log.value && (log.value.live || !log.value.loaded)) {
    try {
      await changes((g) => {
        if (g === generation.value) return;
        void load().then(() => (generation.value = g));
      }, new AbortController().signal);
    } catch {
      // The service is gone or slow: the next attempt says which.
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
    await load();
  }
}
