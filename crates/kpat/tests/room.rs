//! Where there is no room for a result: the error has the name of what was to be written and the reason, and nothing of it stays.

use crate::{fixture, sockets};

use fixture::Folder;
use sockets::Log;
use std::path::Path;
use std::process::{Command, Output};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

fn limited(limit: &str, words: &[&str]) -> Output {
    let script = format!("{limit}; exec \"$@\"");
    Command::new("bash").args(["-c", &script, "x", KPAT]).args(words).output().unwrap()
}

fn of_applications(name: &str) -> Log {
    sockets::log(name, &sockets::sockets(), &sockets::events(), &sockets::states())
}

fn names(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn what_cannot_be_written_is_named_with_the_reason_and_leaves_nothing() {
    let folder = Folder::new("room");
    let log = fixture::integrated(&folder);
    let app = of_applications("room");
    let (log, app, to) = (log.to_str().unwrap(), app.0.to_str().unwrap(), folder.0.join("to"));
    std::fs::create_dir(&to).unwrap();
    let file = to.join("x");
    let name = file.to_str().unwrap();
    for words in [
        &["export", log, "--to", "perfetto", "-o", name][..],
        &["export", log, "--to", "pprof", "-o", name],
        &["export", log, "--to", "tsv", "-o", name],
        &["export", log, "--to", "json", "-o", name],
        &["app", "export", app, "-o", name],
        &["app", "export", app, "--format", "tsv", "-o", name],
        &["app", app, "--to", "tsv", "-o", name],
        &["phases", log, "--html", name],
        &["phases", log, "--svg", name],
    ] {
        let done = limited("true", words);
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(names(&to), ["x"], "{words:?}");
        std::fs::remove_file(&file).unwrap();
        let done = limited("ulimit -f 0", words);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        let said = format!("kpat: cannot write {name}: the limit of a file's size (ulimit -f) is reached\n");
        assert_eq!((done.status.code(), text.contains(&said)), (Some(1), true), "{words:?}: {text}");
        assert_eq!(names(&to), [] as [&str; 0], "{words:?}");
    }
    let full = limited("true", &["export", log, "--to", "json", "-o", "/dev/full"]);
    assert_eq!(String::from_utf8_lossy(&full.stderr), "kpat: cannot write /dev/full: the disk is full\n");
    for words in [
        &["export", log, "--to", "json"][..],
        &["info", log],
        &["packets", log, "--json"],
        &["--help"],
        &["record", "-h"],
        &["--version"],
    ] {
        let full = limited("exec > /dev/full", words);
        let text = String::from_utf8_lossy(&full.stderr).into_owned();
        assert!(
            text.ends_with("kpat: cannot write to standard output: the disk is full\n"),
            "{words:?}: {text}"
        );
        assert_eq!(full.status.code(), Some(1));
    }
}

/// Several files: a new folder is whole or not there, one that was there is empty again.
#[test]
fn a_folder_of_files_is_whole_or_not_there() {
    let folder = Folder::new("room-files");
    let app = of_applications("room-files");
    let log = app.0.to_str().unwrap();
    let (new, there) = (folder.0.join("new"), folder.0.join("there"));
    std::fs::create_dir(&there).unwrap();
    for to in [&new, &there] {
        let words = ["app", "export", log, "--format", "ns3", "-o", to.to_str().unwrap()];
        let done = limited("ulimit -f 0", &words);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{text}");
        assert!(text.contains("the limit of a file's size"), "{text}");
        assert!(!new.exists() && names(&there).is_empty() && !folder.0.join("new.partial").exists());
    }
    for to in [&new, &there] {
        let mut with_slash = to.to_str().unwrap().to_owned();
        with_slash.push('/');
        let words = ["app", "export", log, "--format", "ns3", "-o", &with_slash];
        assert!(limited("true", &words).status.success());
        assert!(!names(to).is_empty());
    }
}

/// What is integrated only to be looked at, in the folder for what is temporary.
#[test]
fn a_full_temporary_folder_is_no_damaged_log() {
    let folder = Folder::new("room-temporary");
    let log = fixture::recorded(&folder);
    let log = log.to_str().unwrap();
    let tmp = folder.0.join("tmp");
    std::fs::create_dir(&tmp).unwrap();
    let limit = format!("export TMPDIR={}; ulimit -f 0", tmp.display());
    for words in [&["view", log, "--no-open"][..], &["packets", log, "--follow"]] {
        let done = limited(&limit, words);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{words:?}: {text}");
        assert!(
            text.ends_with("cannot write: the limit of a file's size (ulimit -f) is reached\n"),
            "{words:?}: {text}"
        );
        assert!(!text.contains("damaged"), "{text}");
        assert_eq!(names(&tmp), [] as [&str; 0], "{words:?}");
    }
}
