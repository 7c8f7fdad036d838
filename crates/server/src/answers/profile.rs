//! Answers about a profile: whom the CPUs worked for. The tree of its samples is a [`super::functions::Flame`].

use super::declare::{Ns, answers};

answers! {
    /// /api/profile   Whom the CPUs worked for; null: the log has no profile. 2,000 processes and 2,000 pairs at most.
    ProfileAnswer {
        profile: Option<Profile>,
    }
    Profile {
        /// CPU time that passed, and the CPUs.
        passed: Ns,
        cpus: usize,
        /// All of it, each nanosecond in one: name and time.
        buckets: Vec<(String, Ns)>,
        /// Buckets less what passed.
        difference: Ns,
        /// By the programs, and by the kernel's own count; null: not in the log.
        packets: Option<(i64, i64)>,
        requests: Option<(i64, i64)>,
        /// Most charged first.
        processes: Vec<ProfileProcess>,
        left_out: usize,
        /// Time of one that went to another; most first.
        pairs: Vec<ProfilePair>,
        pairs_left_out: usize,
        /// Own time of servers for their clients.
        clients: Vec<ProfilePair>,
        /// Samples of CPUs that were not idle, and the time that one stands for; null: none were taken.
        samples: Option<(i64, Ns)>,
    }
    ProfileProcess {
        /// Its id, and above 22 bits how many processes had that before it.
        number: i32,
        name: String,
        kernel_thread: bool,
        unit: Option<String>,
        container: Option<String>,
        charged: Ns,
        user: Ns,
        /// In its own system calls.
        kernel: Ns,
        system_calls: i64,
        faults: Ns,
        page_faults: i64,
        /// Done for it in interrupts and kernel threads.
        served: Ns,
        packets: i64,
        requests: i64,
        /// Out of its time for others, or for nobody.
        taken: Ns,
        for_clients: Ns,
        ran: Ns,
        /// The packets of its tasks, as a filter; null: the log has no packets of a task of it.
        where_packets: Option<String>,
    }
    /// Numbers of processes; null: an idle CPU, or no process.
    ProfilePair {
        victim: Option<i32>,
        victim_name: String,
        beneficiary: Option<i32>,
        beneficiary_name: String,
        time: Ns,
        packets: i64,
    }
}
