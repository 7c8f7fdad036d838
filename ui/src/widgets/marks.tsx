// Small signs that mean the same everywhere: quantities with a quiet unit, protocols, verdicts, confidence, warnings.
// Each says in words or shape what its colour says.

import type { JSX } from "preact";
import { NONE, seen, share, shortSpan, spanParts, sure } from "../base/units.ts";

export function Span(p: { ns: number | null | undefined }): JSX.Element {
  if (p.ns === null || p.ns === undefined) return <span class="none">{NONE}</span>;
  const q = spanParts(p.ns);
  return (
    <span class="span">
      {q.number}
      <span class={`unit u-${q.unit === "µs" ? "us" : q.unit}`}>{q.unit}</span>
    </span>
  );
}

/** How far a time may be off. */
export function Bound(p: { ns: number | null }): JSX.Element {
  return p.ns === null ? <span class="none">{NONE}</span> : <span class="bound">± {shortSpan(p.ns)}</span>;
}

const PROTOCOLS: [RegExp, string][] = [
  [/^tcp/i, "tcp"],
  [/^udp/i, "udp"],
  [/^icmp/i, "icmp"],
  [/^(arp|ndp|nd)/i, "arp"],
];

export function protocolClass(proto: string): string {
  return PROTOCOLS.find(([r]) => r.test(proto))?.[1] ?? "other";
}

export function Protocol(p: { name: string }): JSX.Element {
  return <span class={`proto p-${protocolClass(p.name)}`}>{seen(p.name) || NONE}</span>;
}

const LAYERS = new Set(["driver", "link", "network", "transport", "socket"]);

export function layerClass(layer: string): string {
  return LAYERS.has(layer) ? layer : "other";
}

export function Layer(p: { name: string }): JSX.Element {
  return (
    <span class="layer">
      <i class={`dot l-${layerClass(p.name)}`} aria-hidden="true" />
      {seen(p.name) || "other"}
    </span>
  );
}

export function Verdict(p: { verdict: string; drop: string | null }): JSX.Element {
  if (p.drop || p.verdict === "dropped")
    return (
      <span class="verdict dropped" title={p.drop ?? undefined}>
        <span aria-hidden="true">✕ </span>
        {seen(p.drop ?? "dropped")}
      </span>
    );
  return <span class={`verdict${p.verdict === "unknown" ? " none" : ""}`}>{seen(p.verdict)}</span>;
}

/** Confidence of a match: a number and a bar of five. */
export function Sure(p: { of: number | null; ambiguous?: boolean }): JSX.Element {
  if (p.of === null)
    return (
      <span class="none" title="No wire frame was matched">
        {NONE}
      </span>
    );
  return (
    <span class="sure" title={p.ambiguous ? "Other frames or packets could be meant as well" : undefined}>
      {p.ambiguous && <span class="glyph doubt">?</span>}
      {sure(p.of)}
    </span>
  );
}

export function Share(p: { of: number }): JSX.Element {
  return (
    <span class="share">
      <i class="share-bar" style={{ width: `${Math.round(Math.max(0, Math.min(1, p.of)) * 60)}px` }} aria-hidden="true" />
      <span>{share(p.of)}</span>
    </span>
  );
}

/** The layer that a phase of a packet's way is coloured like. */
export function phaseLayer(phase: string): string {
  const known: [RegExp, string][] = [
    [/^dma/, "driver"],
    [/link/, "link"],
    [/^network/, "network"],
    [/^transport/, "transport"],
    [/^(socket|copy)/, "socket"],
  ];
  return known.find(([r]) => r.test(phase))?.[1] ?? "other";
}

/** Something a careful reader must know before believing what stands beside. */
export function Warning(p: { children: string }): JSX.Element {
  return (
    <p class="warning" role="note">
      <span class="glyph bad" aria-hidden="true">
        !
      </span>
      {seen(p.children)}
    </p>
  );
}

/** A name out of the log, in the face for code. */
export function Name(p: { children: string }): JSX.Element {
  return <code class="name">{seen(p.children)}</code>;
}
