// The matrix of whose time went to whom, out of pairs. No drawing.

import type { ProfilePair } from "../../api/types.ts";

export interface Side {
  /** Of a process; null: an idle CPU, or no process. */
  number: number | null;
  name: string;
  total: number;
}

export interface Matrix {
  victims: Side[];
  beneficiaries: Side[];
  /** By victim, then beneficiary. */
  time: number[][];
  /** The largest of them. */
  most: number;
  /** What is in rows or columns that are not shown. */
  rest: number;
  total: number;
}

/** A process is its number; what is none is its name. */
const key = (number: number | null, name: string): string => (number === null ? `(${name})` : String(number));

function sides(pairs: ProfilePair[], of: (p: ProfilePair) => [number | null, string], most: number): Side[] {
  const all = new Map<string, Side>();
  for (const p of pairs) {
    const [number, name] = of(p);
    const side = all.get(key(number, name));
    if (side) side.total += p.time;
    else all.set(key(number, name), { number, name, total: p.time });
  }
  return [...all.values()].sort((a, b) => b.total - a.total).slice(0, most);
}

/** Those with the most time on either side, at most so many. */
export function matrix(pairs: ProfilePair[], most: number): Matrix {
  const victims = sides(pairs, (p) => [p.victim, p.victim_name], most);
  const beneficiaries = sides(pairs, (p) => [p.beneficiary, p.beneficiary_name], most);
  const place = (all: Side[]) => new Map(all.map((s, i) => [key(s.number, s.name), i]));
  const [rows, columns] = [place(victims), place(beneficiaries)];
  const time = victims.map(() => beneficiaries.map(() => 0));
  let [largest, rest, total] = [0, 0, 0];
  for (const p of pairs) {
    total += p.time;
    const r = rows.get(key(p.victim, p.victim_name));
    const c = columns.get(key(p.beneficiary, p.beneficiary_name));
    if (r === undefined || c === undefined) {
      rest += p.time;
      continue;
    }
    time[r]![c]! += p.time;
    largest = Math.max(largest, time[r]![c]!);
  }
  return { victims, beneficiaries, time, most: largest, rest, total };
}

const IDS = 2 ** 22;

/** The id of a process by its number; that of the second process with an id has .2 behind it. */
export const idOf = (number: number): string => (number < IDS ? String(number) : `${number % IDS}.${Math.floor(number / IDS) + 1}`);

export const called = (s: { number: number | null; name: string }): string => (s.number === null ? `(${s.name})` : `${s.name || "?"} ${idOf(s.number)}`);

const TINTS: Record<string, string> = { user: "socket", kernel: "transport", context: "driver" };

/** Parts of a sample's path have the colours of layers: user mode, kernel, interrupt. */
export const tint = (part: string): string => TINTS[part] ?? "other";
