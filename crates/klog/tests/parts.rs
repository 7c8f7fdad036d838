//! Files in the making: whose writer lives is left alone, whose writer died is finished, and nothing is overwritten.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_klog::{EndState, Log, Writer, adopt, finish};
use kpat_model::meta::{Json, Meta};
use std::fs;
use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("kpat-klog-parts-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn begin(path: &std::path::Path) -> Writer<fs::File> {
    let mut w = Writer::create_part(path).unwrap();
    w.json(&Json::Meta(Box::<Meta>::default())).unwrap();
    w
}

#[test]
fn only_what_has_no_writer_is_adopted() {
    let dir = folder("adopt");
    let alive = begin(&dir.join("a.kbl.part"));
    drop(begin(&dir.join("b.kbl.part")));
    fs::write(dir.join("c.kbl.part"), "").unwrap();
    fs::write(dir.join("d.txt.part"), "not ours").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", dir.join("e.kbl.part")).unwrap();
    assert_eq!(adopt(&dir).unwrap().names, [dir.join("b.kbl")]);
    let log = Log::open(&dir.join("b.kbl")).unwrap();
    assert_eq!(*log.end_state(), EndState::Open { tail_bytes: 0 });
    for still in ["a.kbl.part", "c.kbl.part", "d.txt.part", "e.kbl.part"] {
        assert!(fs::symlink_metadata(dir.join(still)).is_ok(), "{still}");
    }
    drop(alive);
    assert_eq!(adopt(&dir).unwrap().names, [dir.join("a.kbl")]);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_name_that_is_taken_is_not_replaced() {
    let dir = folder("taken");
    fs::write(dir.join("a.kbl"), "precious").unwrap();
    let part = dir.join("a.kbl.part");
    let w = begin(&part);
    assert!(Writer::create_part(&part).is_err());
    assert!(finish(w.get_ref(), &part, &dir.join("a.kbl")).is_err());
    drop(w);
    let left = adopt(&dir).unwrap().left;
    assert_eq!(left.iter().map(|l| &l.0).collect::<Vec<_>>(), [&part]);
    assert_eq!(fs::read(dir.join("a.kbl")).unwrap(), b"precious");
    assert!(part.exists());
    // A crash between the two steps of finishing leaves both names on one file.
    fs::remove_file(dir.join("a.kbl")).unwrap();
    fs::hard_link(&part, dir.join("a.kbl")).unwrap();
    assert_eq!(adopt(&dir).unwrap().names, [] as [PathBuf; 0]);
    assert!(!part.exists() && dir.join("a.kbl").exists());
    fs::remove_dir_all(&dir).unwrap();
}
