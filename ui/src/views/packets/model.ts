// Rows of the packet list: what their signs mean. No drawing, no service.

import type { PacketRow } from "../../api/types.ts";

export interface Sign {
  key: "drop" | "retransmission" | "ambiguous" | "unmatched";
  glyph: string;
  words: string;
}

export const SIGNS: Record<Sign["key"], Sign> = {
  drop: { key: "drop", glyph: "✕", words: "dropped" },
  retransmission: { key: "retransmission", glyph: "↻", words: "retransmission" },
  ambiguous: { key: "ambiguous", glyph: "?", words: "match not certain" },
  unmatched: { key: "unmatched", glyph: "○", words: "frame without a packet" },
};

/** The signs of a row, the gravest first. */
export function signs(row: PacketRow): Sign[] {
  const found: Sign[] = [];
  if (row.drop !== null || row.verdict === "dropped") found.push(SIGNS.drop);
  if (row.retransmission) found.push(SIGNS.retransmission);
  if (row.ambiguous) found.push(SIGNS.ambiguous);
  if (row.id === null) found.push(SIGNS.unmatched);
  return found;
}

/** What a screen reader or a tooltip says of a row. */
export function rowWords(row: PacketRow): string {
  const name = row.id === null ? `frame ${row.frame ?? "?"}` : `packet ${row.id}`;
  const extra = signs(row).map((s) => s.words);
  return [`${name}, ${row.proto} from ${row.src} to ${row.dst}`, ...extra].join(", ");
}
