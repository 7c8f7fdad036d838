//! Questions about a profile, over a log in which a receiver's packets interrupted a program that only computes.

use crate::asking;
use crate::fixture::{self, Folder, START};

use asking::serve;
use kpat_model::{Busy, Purpose};
use kpat_store::tables::*;
use kpat_store::{Row, TableWriter};
use serde_json::json;
use std::path::Path;

fn replace<R: Row>(dir: &Path, name: &str, rows: &[R]) {
    std::fs::remove_file(dir.join(name)).unwrap();
    let mut table = TableWriter::<R>::create(dir).unwrap();
    rows.iter().for_each(|r| table.push(r).unwrap());
    table.finish().unwrap();
}

fn work(busy: Busy, purpose: Purpose, victim: i32, beneficiary: Option<i32>, ns: i64) -> WorkRow {
    let (busy, purpose) = (busy as i32, purpose as i32);
    WorkRow {
        cpu: 0,
        busy,
        purpose,
        victim: Some(victim),
        beneficiary,
        time_ns: ns,
        packets: 2,
        bytes: 100,
        ..WorkRow::default()
    }
}

#[test]
fn whom_the_cpus_worked_for_and_the_tree_of_samples() {
    let folder = Folder::new("served-profile");
    let dir = fixture::integrated(&folder);
    let none = serve(&dir, None);
    assert!(none.ask("/api/profile")["profile"].is_null());
    assert_eq!(none.ask("/api/profile/flame")["nodes"]["rows"], 0);

    let works = [
        work(Busy::User, Purpose::Itself, 70, Some(70), 1_000),
        work(Busy::Softirq, Purpose::Socket, 70, Some(90), 200),
        work(Busy::Kernel, Purpose::Itself, 90, Some(90), 300),
        work(Busy::Softirq, Purpose::Drop, 70, None, 50),
    ];
    replace(&dir, WORK.file_name().as_str(), &works);
    let account = CpuAccountRow { from_ns: START, to_ns: START + 1_550, ..CpuAccountRow::default() };
    replace(&dir, CPU_ACCOUNT.file_name().as_str(), &[account]);
    let requests = BlockAccountRow { from_ns: START, to_ns: START + 1_550, counted: 7, completed: 9 };
    replace(&dir, BLOCK_ACCOUNT.file_name().as_str(), &[requests]);
    let sample = |busy: Busy, purpose: Purpose, served: i32, kernel: Option<i32>| SampleRow {
        at_ns: START,
        cpu: 0,
        thread: Some(70),
        victim: Some(70),
        busy: busy as i32,
        purpose: purpose as i32,
        beneficiary: Some(served),
        drawn: 0,
        user_mode: 0,
        period_ns: 100,
        kernel_stack: kernel,
        user_stack: None,
    };
    let softirq = sample(Busy::Softirq, Purpose::Socket, 90, Some(1));
    replace(&dir, SAMPLE.file_name().as_str(), &[sample(Busy::User, Purpose::Itself, 70, None), softirq]);
    let frame = |depth, function: &str| StackRow {
        stack: 1,
        depth,
        function: Some(function.into()),
        file: None,
        offset: None,
        line: None,
        inlined: 0,
    };
    replace(&dir, STACK.file_name().as_str(), &[frame(0, "udp_rcv"), frame(1, "handle_softirqs")]);

    let s = serve(&dir, None);
    let p = s.ask("/api/profile")["profile"].clone();
    assert_eq!((&p["passed"], &p["difference"], &p["requests"]), (&json!(1_550), &json!(0), &json!([7, 9])));
    let of =
        |pid: i32| p["processes"].as_array().unwrap().iter().find(|x| x["number"] == pid).unwrap().clone();
    let (burner, receiver) = (of(70), of(90));
    assert_eq!((&burner["charged"], &burner["taken"]), (&json!(1_000), &json!(250)));
    assert_eq!(
        (&receiver["charged"], &receiver["served"], &receiver["packets"]),
        (&json!(500), &json!(200), &json!(2))
    );
    let pair = &p["pairs"][0];
    assert_eq!((&pair["victim"], &pair["beneficiary"], &pair["time"]), (&json!(70), &json!(90), &json!(200)));
    assert_eq!(
        (&p["pairs"][1]["beneficiary"], &p["pairs"][1]["beneficiary_name"]),
        (&json!(null), &json!("dropped"))
    );

    let all = s.ask("/api/profile/flame");
    assert_eq!(all["total"], 200);
    let one = s.ask("/api/profile/flame?number=90&context=softirq");
    let c = &one["nodes"]["columns"];
    assert_eq!(c["name"], json!(["? 90", "softirq", "handle_softirqs", "udp_rcv"]));
    assert_eq!(c["layer"], json!(["process", "context", "kernel", "kernel"]));
    assert_eq!((&c["self"], &c["parent"]), (&json!([0, 0, 0, 100]), &json!([-1, 0, 1, 2])));
    assert_eq!(s.ask("/api/profile/flame?number=90&context=task")["total"], 0);
}
