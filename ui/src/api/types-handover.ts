// Generated from crates/server/src/answers as types.ts is. Do not edit.

import type { Ns } from "./types.ts";

// /api/handovers   All handovers, in order of time; 10,000 at most.
export interface Handovers {
  // Why there is none; null: there are some.
  none: string | null;
  left_out: number;
  rows: HandoverLine[];
  // How many they are together, and which are none of these: what did not come to an end.
  together: string;
  // Over those.
  sums: HandoverSum[];
}

export interface HandoverLine {
  number: number;
  from: Ns;
  to: Ns;
  interface: string;
  kind: string;
  cause: string;
  // Access points; empty: not known, or none.
  old: string;
  new: string;
  // From the end of the data path on; null: it had none before.
  without_data: Ns | null;
  // Link-down to link-up.
  link: Ns | null;
  // Until the authentication of the last attempt, of that.
  search: Ns | null;
  // The longest phase, and its share.
  longest: [string, number] | null;
  // What ended it, in words.
  ended: string;
}

export interface HandoverSum {
  label: string;
  group: string;
  handovers: number;
  median: Ns;
  max: Ns;
  // Number of the handover that it is of.
  longest: number;
}

// /api/handover?number=   One of them.
export interface HandoverDetail {
  line: HandoverLine;
  attempts: number;
  // What failed, attempt by attempt.
  refusals: string[];
  // They leave no moment out.
  phases: HandoverPhase[];
  lanes: HandoverLane[];
  // Moments that have a name.
  moments: [string, Ns][];
  // null: no flow of an application is in the log.
  gap: HandoverGap | null;
  marks_left_out: number;
  // What records that are missing mean for it; null: none are.
  loss: string | null;
}

export interface HandoverPhase {
  phase: string;
  label: string;
  group: string;
  meaning: string;
  from: Ns;
  to: Ns;
  share: number;
  // What began it, and by which record or frame that is known.
  begin: string;
  evidence: string;
  // What made it long; null: no rule knows.
  why: string | null;
  steps: HandoverStep[];
}

export interface HandoverStep {
  t: Ns;
  time: Ns;
  words: string;
}

export interface HandoverLane {
  name: string;
  marks: HandoverMark[];
}

export interface HandoverMark {
  t: Ns;
  words: string;
  evidence: string;
}

// Between the last data before and the first after it.
export interface HandoverGap {
  from: Ns;
  to: Ns | null;
  words: string;
}
