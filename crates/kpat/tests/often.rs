//! A function that is called without end: what is left out of the log is counted, and of a call both hits are. Needs root.

use super::{compiled, number, text};
use crate::place::{Place, json, kpat, words};
use serde_json::Value;

/// Calls itself, too, so that calls are within calls when it begins to be too often. Says how many calls that were.
const HOT: &str = r#"
#include <stdio.h>
__attribute__((noinline)) int called(int i) { __asm__ volatile("" ::: "memory"); return i % 8 ? called(i - 1) + 1 : i; }
__attribute__((noinline)) void chosen(int i) { __asm__ volatile("" : : "r"(i) : "memory"); }
int main(void) { long n = 0; for (int i = 0; i < 4000; i++) { called(7); chosen(i % 10 - 5); n += 8; } printf("%ld\n", n); return 0; }
"#;

/// Beginnings, ends without one, and what was left out.
fn counted(p: &Place, program: &str, table: &str, limit: &str) -> (i64, i64, i64, Vec<Value>) {
    let (file, log) = (p.path("x.kbl"), p.path("x.kpat"));
    let out = kpat(&[
        "record",
        "--force",
        "-p",
        "programs",
        "--programs",
        table,
        "--programs-limit",
        limit,
        "-o",
        &file,
        "--",
        program,
    ]);
    assert!(out.stdout == b"32000\n", "{}", words(&out));
    let done = kpat(&["integrate", "--force", &file, "-o", &log]);
    assert!(done.stderr.is_empty() || done.status.code().is_some(), "{}", words(&done));
    let all = json(&["events", &log, "--kind", "program,control", "--limit", "0", "--json"]);
    let all: Vec<Value> = all["events"].as_array().cloned().expect("events");
    let own: Vec<&Value> = all.iter().filter(|e| text(e).starts_with("own: ")).collect();
    let of = |stage: i64| own.iter().filter(|e| number(e, "a") == stage).count() as i64;
    let lone = own.iter().filter(|e| number(e, "a") == 2 && number(e, "b") < 0).count() as i64;
    assert_eq!(of(1), of(2), "of a call both or none");
    let losses = json(&["info", &log, "--json"])["losses"].as_array().cloned().unwrap_or_default();
    let left: i64 = losses.iter().filter(|l| l["cause"] == "too-often").map(|l| number(l, "count")).sum();
    let controls = all.iter().filter(|e| e["kind"] == "control").cloned().collect();
    (of(1), lone, left, controls)
}

/// Hits that are recorded by their value.
fn chosen(p: &Place) -> Vec<String> {
    let all = json(&["events", &p.path("x.kpat"), "--kind", "program", "--limit", "0", "--json"]);
    let all = all["events"].as_array().cloned().expect("events");
    all.iter().map(text).filter(|t| t.starts_with("chosen: ")).map(str::to_owned).collect()
}

#[test]
fn what_is_left_out_is_counted() {
    let Some(p) = Place::new("often") else { return };
    let (program, table) = (compiled(&p, "hot", HOT, &["-fno-optimize-sibling-calls"]), p.path("table.txt"));
    let rows = format!(
        "own {program} called span n=1:int,r=return:int called({{n}}) = {{r}}\n\
         chosen {program} chosen mark n=1:int=-2 {{n}}\n"
    );
    std::fs::write(&table, rows).unwrap();
    let (calls, lone, left, controls) = counted(&p, &program, &table, "1000");
    let chosen = chosen(&p).len() as i64;
    assert_eq!((2 * calls + chosen + left, lone), (64_400, 0), "{chosen} by their value");
    assert!((100..32_000).contains(&calls), "{calls}");
    assert!(controls.iter().any(|e| text(e).contains("hot:called is hit too often")), "{controls:?}");
    let (calls, lone, left, controls) = counted(&p, &program, &table, "0");
    assert_eq!((calls, lone, left), (32_000, 0, 0), "{controls:?}");
    // By its value: a tenth of them.
    assert_eq!(self::chosen(&p), vec!["chosen: -2"; 400]);
}
