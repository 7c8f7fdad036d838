// Generated from crates/server/src/answers as types.ts is. Do not edit.

import type { Ns } from "./types.ts";

// /api/profile   Whom the CPUs worked for; null: the log has no profile. 2,000 processes and 2,000 pairs at most.
export interface ProfileAnswer {
  profile: Profile | null;
}

export interface Profile {
  // CPU time that passed, and the CPUs.
  passed: Ns;
  cpus: number;
  // All of it, each nanosecond in one: name and time.
  buckets: [string, Ns][];
  // Buckets less what passed.
  difference: Ns;
  // By the programs, and by the kernel's own count; null: not in the log.
  packets: [number, number] | null;
  requests: [number, number] | null;
  // Most charged first.
  processes: ProfileProcess[];
  left_out: number;
  // Time of one that went to another; most first.
  pairs: ProfilePair[];
  pairs_left_out: number;
  // Own time of servers for their clients.
  clients: ProfilePair[];
  // Samples of CPUs that were not idle, and the time that one stands for; null: none were taken.
  samples: [number, Ns] | null;
}

export interface ProfileProcess {
  // Its id, and above 22 bits how many processes had that before it.
  number: number;
  name: string;
  kernel_thread: boolean;
  unit: string | null;
  container: string | null;
  charged: Ns;
  user: Ns;
  // In its own system calls.
  kernel: Ns;
  system_calls: number;
  faults: Ns;
  page_faults: number;
  // Done for it in interrupts and kernel threads.
  served: Ns;
  packets: number;
  requests: number;
  // Out of its time for others, or for nobody.
  taken: Ns;
  for_clients: Ns;
  ran: Ns;
  // The packets of its tasks, as a filter; null: the log has no packets of a task of it.
  where_packets: string | null;
}

// Numbers of processes; null: an idle CPU, or no process.
export interface ProfilePair {
  victim: number | null;
  victim_name: string;
  beneficiary: number | null;
  beneficiary_name: string;
  time: Ns;
  packets: number;
}
