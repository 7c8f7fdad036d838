//! `kpat sql` as it is typed: answers as text, TSV and JSON, and the errors of wrong queries.

use crate::fixture;

use fixture::Folder;
use std::io::Write;
use std::process::{Command, Output, Stdio};

fn kpat(folder: &Folder, args: &[&str]) -> Output {
    let kpat = env!("CARGO_BIN_EXE_kpat");
    Command::new(kpat).args(args).current_dir(&folder.0).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const QUESTION: &str = "select name, count(*) as n, sum(call.self_ns) as self_ns from call join function using (func_id) where packet_id = 2 group by name order by 3 desc, 1 limit 3";

#[test]
fn answers() {
    let folder = Folder::new("sql-answers");
    fixture::integrated(&folder);
    let table = kpat(&folder, &["sql", "x.kpat", QUESTION]);
    let wanted = [
        "name                        n  self_ns",
        "dev_hard_start_xmit         1   700000",
        "__dev_queue_xmit            1   180000",
        "__udp_enqueue_schedule_skb  1    30000",
    ];
    let found = text(&table.stdout);
    assert_eq!(found.lines().collect::<Vec<_>>(), wanted, "{}", text(&table.stderr));
    let tsv = kpat(&folder, &["sql", "x.kpat", QUESTION, "--tsv"]);
    assert!(text(&tsv.stdout).starts_with("name\tn\tself_ns\ndev_hard_start_xmit\t1\t700000\n"));
    let json = kpat(&folder, &["sql", "x.kpat", QUESTION, "--json"]);
    let rows: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(rows[0], serde_json::json!({"name": "dev_hard_start_xmit", "n": 1, "self_ns": 700_000}));
    // A name with an escape sequence in it.
    let names = kpat(&folder, &["sql", "x.kpat", "select comm from process where pid = 900"]);
    assert!(text(&names.stdout).contains("nc\\x1b[31m"), "{}", text(&names.stdout));
    let none = kpat(&folder, &["sql", "x.kpat", "select * from call where call_id < 0"]);
    assert!(none.status.success() && none.stdout.is_empty() && text(&none.stderr).contains("no row matches"));
}

#[test]
fn a_question_from_standard_input() {
    let folder = Folder::new("sql-stdin");
    fixture::integrated(&folder);
    let mut child = Command::new(env!("CARGO_BIN_EXE_kpat"))
        .args(["sql", "x.kpat", "--tsv"])
        .current_dir(&folder.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"select count(*)\nfrom packet;\n").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "count(*)\n4\n");
}

#[test]
fn tables_and_columns() {
    let folder = Folder::new("sql-tables");
    fixture::integrated(&folder);
    let all = text(&kpat(&folder, &["sql", "x.kpat", "--tables", "--width", "100"]).stdout);
    assert!(all.contains("association") && all.contains("drop_reason"), "{all}");
    let one = text(&kpat(&folder, &["sql", "x.kpat", "--tables", "call"]).stdout);
    assert!(one.contains("entry_ns") && !one.contains("drop_reason"), "{one}");
    let json = kpat(&folder, &["sql", "x.kpat", "--tables", "call", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(found[0]["columns"][3]["clock"], "boot");
}

#[test]
fn a_wrong_question_is_said_with_the_nearest_name() {
    let folder = Folder::new("sql-wrong");
    fixture::integrated(&folder);
    fixture::recorded(&folder);
    let cases: [(&[&str], i32, &str); 10] = [
        (&["x.kpat", "select * from calls"], 2, "no table `calls`; did you mean `call`?"),
        (&["x.kpat", "select c.entryns from call c"], 2, "no column `c.entryns`; did you mean `entry_ns`?"),
        (&["x.kpat", "select x_no from call c"], 2, "no column `x_no`"),
        (&["x.kpat", "select netns from call"], 2, "no column `netns` in the tables of this query; "),
        (&["x.kpat", "delete from call"], 2, "the log is never changed"),
        (&["x.kpat", "selec 1"], 2, "syntax error"),
        (&["x.kpat", "--tables", "calls"], 2, "did you mean `call`?"),
        (&["x.kbl", "select 1"], 1, "first run: kpat integrate x.kbl"),
        (&["none.kpat", "select 1"], 1, "none.kpat"),
        (&["x.kpat", "select 1; select 2"], 2, "one question"),
    ];
    for (args, code, says) in cases {
        let mut all = vec!["sql"];
        all.extend(args);
        let done = kpat(&folder, &all);
        let words = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {words}");
        assert!(words.contains(says), "{args:?}: {words}");
        assert!(done.stdout.is_empty());
    }
}
