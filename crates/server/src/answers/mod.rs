//! What the service answers: the contract with the page. `ui/src/api/types.ts`, `types-functions.ts`, `types-apps.ts`, `types-handover.ts` and `types-profile.ts` are generated
//! from here ([`files`]); a test holds the two against each other.

pub mod apps;
pub(crate) mod declare;
pub mod functions;
pub mod handover;
pub mod log;
pub mod packets;
pub mod profile;

pub use declare::{Big, Columns, Ns};

/// All of it.
pub fn typescript() -> String {
    [
        base().as_str(),
        "\n",
        &functions::typescript(),
        "\n",
        &apps::typescript(),
        "\n",
        &handover::typescript(),
        "\n",
        &profile::typescript(),
    ]
    .concat()
}

/// The files in `ui/src/api/`.
pub fn files() -> [(&'static str, String); 5] {
    let more = |imports: &str, types: &str| {
        let made = "// Generated from crates/server/src/answers as types.ts is. Do not edit.\n\n";
        format!("{made}import type {{ {imports} }} from \"./types.ts\";\n\n{types}")
    };
    let others = ["functions", "apps", "handover", "profile"]
        .map(|of| format!("export type * from \"./types-{of}.ts\";\n"));
    let all = base() + "\n" + &others.concat();
    [
        ("types.ts", all),
        ("types-functions.ts", more("Columns, Ns", &functions::typescript())),
        ("types-apps.ts", more("Big, Ns", &apps::typescript())),
        ("types-handover.ts", more("Ns", &handover::typescript())),
        ("types-profile.ts", more("Ns", &profile::typescript())),
    ]
}

fn base() -> String {
    let head = "// Generated from crates/server/src/answers by `UPDATE_TYPES=1 cargo test -p kpat-server --test types`. Do not edit.\n\
        //\n\
        // All questions are GET of the same origin, with the header `x-kpat-token`. Every answer is NDJSON: any number of lines\n\
        // Step or SoFar, then one line End. Whoever closes the connection leaves the question; the work for it stops.\n\
        // Parameters that every question takes: device=NAME (a log of several devices), where=FILTER (see docs/filter.md).\n\n\
        // Nanoseconds: since the log's start (times) or a duration.\n\
        export type Ns = number;\n\
        // A whole number that a double may not hold, as decimal text.\n\
        export type Big = string;\n\
        // Rows of T, column by column.\n\
        export interface Columns<T> { rows: number; columns: { [K in keyof T]: T[K][] } }\n\
        // While work is done, 0 to 1.\n\
        export interface Step { progress: number; words: string }\n\
        // The answer over the part of the packets that has been read until now.\n\
        export interface SoFar<T> { part: T }\n\
        // What is wrong, and where in the filter (UTF-16 units, as a text field counts) if it is the filter.\n\
        export interface Failure { words: string; at: { from: number; to: number } | null }\n\
        export type End<T> = { result: T } | { error: Failure };\n\
        // Server-sent events of /api/changes?token=: the log has grown, or its packets are all read; ask again.\n\
        export interface Change { generation: number }\n\n";
    [
        head,
        &log::typescript(),
        "\n",
        &packets::typescript(),
        "\n",
        packets::PACKETS,
        "\n",
        &packets::columns(),
    ]
    .concat()
}
