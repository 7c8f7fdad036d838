// Numbers as people read them: one way for each quantity, everywhere on the page.
// Durations carry their own unit and three decimals, as on the command line, so that columns align; a number that is not
// known is a dash, never 0.

export const NONE = "–";

export interface Quantity {
  number: string;
  unit: string;
}

const SPAN: [limit: number, divisor: number, unit: string][] = [
  [1e3, 1, "ns"],
  [1e6, 1e3, "µs"],
  [1e9, 1e6, "ms"],
  [Infinity, 1e9, "s"],
];

/** A duration in ns, split so that the unit can be drawn quieter than the number. */
export function spanParts(ns: number): Quantity {
  const size = Math.abs(ns);
  // 999,999.6 ns must not become "1000.000 µs".
  const [, divisor, unit] = SPAN.find(([limit, d]) => (d === 1 ? Math.round(size) < limit : size < limit - d / 2000)) ?? SPAN[3]!;
  const number = divisor === 1 ? String(Math.round(ns)) : (ns / divisor).toFixed(3);
  return { number: number.replace("-", "−"), unit };
}

export function span(ns: number | null | undefined): string {
  if (ns === null || ns === undefined) return NONE;
  const q = spanParts(ns);
  return `${q.number} ${q.unit}`;
}

/** A duration where room is short: three significant digits. */
export function shortSpan(ns: number): string {
  const size = Math.abs(ns);
  const [, divisor, unit] = SPAN.find(([limit, d]) => Number((size / d).toPrecision(3)) * d < limit) ?? SPAN[3]!;
  return `${Number((ns / divisor).toPrecision(3))} ${unit}`.replace("-", "−");
}

/** How far a time may be off. */
export function bound(ns: number): string {
  return `± ${span(ns)}`;
}

/** Seconds since the log's start. */
export function moment(ns: number, decimals = 6): string {
  return (ns / 1e9).toFixed(decimals).replace("-", "−");
}

/** Nanoseconds since 1970 as time of day, UTC, with microseconds; `date`: with the date. */
export function timeOfDay(wall: bigint, date = false): string {
  const us = wall / 1000n - (wall % 1000n < 0n ? 1n : 0n);
  const ms = us / 1000n - (us % 1000n < 0n ? 1n : 0n);
  const iso = new Date(Number(ms)).toISOString();
  const [day, time] = [iso.slice(0, 10), iso.slice(11, 23)];
  return `${date ? `${day} ` : ""}${time}${String(us - ms * 1000n).padStart(3, "0")}`;
}

export function count(n: number): string {
  return Math.round(n)
    .toString()
    .replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** "1 packet", "2 packets". */
export function many(n: number, one: string, more = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : more}`;
}

/** A share of 0..1 in percent; what is not quite 100 % is not rounded up to it, nor what is not nothing down to 0. */
export function share(x: number): string {
  if (!Number.isFinite(x)) return NONE;
  if (x > 0 && x < 0.001) return "< 0.1 %";
  if (x < 1 && x > 0.999) return "> 99.9 %";
  return `${(x * 100).toFixed(1)} %`;
}

/** Confidence of a match, which the service tells in percent. */
export function sure(percent: number | null): string {
  return percent === null ? NONE : `${Math.floor(percent)} %`;
}

export function bytes(n: number): string {
  return `${count(n)} B`;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes where room is short, as on the command line. */
export function size(n: number): string {
  let [value, i] = [Math.abs(n), 0];
  // 1023.96 KiB must not become "1024.0 KiB".
  while (i < SIZES.length - 1 && (i ? value >= 1023.95 : value >= 1024)) [value, i] = [value / 1024, i + 1];
  return `${n < 0 ? "−" : ""}${i ? value.toFixed(1) : Math.round(value)} ${SIZES[i]}`;
}

/** What was typed as a duration: `250ns`, `10us`, `1.5 ms`, `2s`. null where it is none. */
export function readSpan(text: string): number | null {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\s*$/.exec(text);
  if (!found) return null;
  const factor = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9 }[found[2] as "ns"];
  return Math.round(Number(found[1]) * factor);
}

const CONTROL = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** A string out of a log: what could move, hide or turn the text around it is made visible. */
export function seen(text: string): string {
  return text.replace(CONTROL, (c) => {
    const code = c.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `\\u{${code.toString(16)}}`;
  });
}

/** A process and its number, as `kpat packets` has them: of a thread that is not its first, `name pid/thread`. */
export function who(p: { process: string | null; pid: number | null; tgid: number | null }): string {
  const thread = p.pid === null ? [] : [p.tgid === null || p.tgid === p.pid ? `${p.pid}` : `${p.tgid}/${p.pid}`];
  return [...(p.process === null ? [] : [seen(p.process)]), ...thread].join(" ");
}
