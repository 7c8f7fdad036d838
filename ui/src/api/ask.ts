// One question to the service: sent, followed while it works, left when nobody waits for it any more.
// An answer is lines of JSON: progress as often as the service likes, in between answers over the part that has been read
// so far, then one result or one error.

import { signal } from "@preact/signals";

export interface Span {
  from: number;
  to: number;
}

/** Which device of a log of several every question is about. */
export const device = signal<string | null>(null);

/** The service understood and says no, in words for people; `at` is the place in the filter. */
export class Refused extends Error {
  constructor(
    words: string,
    readonly at: Span | null,
  ) {
    super(words);
  }
}

export type Params = Record<string, string | number | boolean | null | undefined>;

export interface Following {
  signal?: AbortSignal;
  progress?: (part: number, words: string) => void;
  /** An answer over the part that has been read until now. */
  soFar?: (value: unknown) => void;
}

/** What one line of an answer says. */
export type Line<T> =
  | { kind: "progress"; part: number; words: string }
  | { kind: "so far"; value: T }
  | { kind: "result"; value: T }
  | { kind: "error"; words: string; at: Span | null };

export function readLine<T>(text: string): Line<T> {
  const answer = JSON.parse(text) as {
    progress?: number;
    words?: string;
    part?: T;
    result?: T;
    error?: { words: string; at?: Span | null };
  };
  if (answer.error) return { kind: "error", words: answer.error.words, at: answer.error.at ?? null };
  if (answer.result !== undefined) return { kind: "result", value: answer.result };
  if (answer.part !== undefined) return { kind: "so far", value: answer.part };
  return { kind: "progress", part: answer.progress ?? 0, words: answer.words ?? "" };
}

/** Address of a question; parameters that are empty or unknown are left out. */
export function address(path: string, params: Params): string {
  const given = Object.entries(params).filter(([, v]) => v !== null && v !== undefined && v !== "" && v !== false);
  const query = given.map(([k, v]) => `${k}=${encodeURIComponent(String(v))}`).join("&");
  return `api/${path}${query ? `?${query}` : ""}`;
}

const TOKEN = "kpat-token";

/** How long a new tab waits for an older one of the same service to pass the token on. */
const NEIGHBOUR_MS = 250;

/**
 * Takes the token out of the address, where `kpat view` put it, so that it is in no link and no history. A tab that was
 * opened by a link has none and asks the other tabs of this origin, which nobody else can hear.
 */
export async function takeToken(): Promise<void> {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(TOKEN, found[1]!);
    history.replaceState(null, "", location.pathname);
  }
  const tabs = new BroadcastChannel(TOKEN);
  if (!sessionStorage.getItem(TOKEN)) {
    await new Promise<void>((heard) => {
      setTimeout(heard, NEIGHBOUR_MS);
      tabs.onmessage = (e: MessageEvent<{ token?: string }>) => {
        if (!e.data.token) return;
        sessionStorage.setItem(TOKEN, e.data.token);
        heard();
      };
      tabs.postMessage({});
    });
  }
  tabs.onmessage = (e: MessageEvent<{ token?: string }>) => {
    const token = sessionStorage.getItem(TOKEN);
    if (token && !e.data.token) tabs.postMessage({ token });
  };
}

function headers(): Record<string, string> {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { "x-kpat-token": token } : {};
}

async function send(url: string, signal: AbortSignal | undefined): Promise<ReadableStreamDefaultReader<Uint8Array>> {
  let answer: Response;
  try {
    answer = await fetch(url, { headers: headers(), signal: signal ?? null, cache: "no-store" });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new Refused("The service does not answer. Is `kpat view` still running?", null);
  }
  if (answer.status === 401 || answer.status === 403)
    throw new Refused("The service does not know this page. Open the address that `kpat view` printed.", null);
  if (!answer.body) throw new Refused(`The service answered ${answer.status} and nothing else.`, null);
  return answer.body.getReader();
}

/** The pieces of a stream, line by line. */
async function* lines(reader: ReadableStreamDefaultReader<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  // Joined once at the end of a line: an answer of megabytes is one line in many pieces.
  let pieces: string[] = [];
  for (;;) {
    const { done, value } = await reader.read();
    const text = value ? decoder.decode(value, { stream: true }) : "";
    let start = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
      pieces.push(text.slice(start, end));
      yield pieces.join("");
      pieces = [];
      start = end + 1;
    }
    pieces.push(text.slice(start));
    if (done) break;
  }
  yield pieces.join("");
}

export async function ask<T>(path: string, params: Params = {}, follow: Following = {}): Promise<T> {
  const reader = await send(address(path, { device: device.peek(), ...params }), follow.signal);
  for await (const text of lines(reader)) {
    if (!text.trim()) continue;
    let line: Line<T>;
    try {
      line = readLine<T>(text);
    } catch {
      throw new Refused("The service's answer cannot be read. Are page and `kpat` of one version?", null);
    }
    if (line.kind === "progress") follow.progress?.(line.part, line.words);
    else if (line.kind === "so far") follow.soFar?.(line.value);
    else if (line.kind === "result") return line.value;
    else throw new Refused(line.words, line.at);
  }
  throw new Refused("The service stopped in the middle of its answer.", null);
}

/** Calls `changed` whenever a log that is still recorded has grown; ends with `signal`. */
export async function changes(changed: (generation: number) => void, signal: AbortSignal): Promise<void> {
  const reader = await send("api/changes", signal);
  for await (const text of lines(reader)) {
    const data = /^data: ?(\{.*\})$/.exec(text.trim());
    if (data) changed((JSON.parse(data[1]!) as { generation: number }).generation);
  }
}
