//! A recording that goes on: the page gets what is there, then the rest, and nothing is left behind.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../kpat/tests/fixture/mod.rs"]
#[allow(dead_code)]
mod fixture;

use fixture::{Folder, recorded};
use kpat_server::{Growing, Service, Start};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One question's answer.
fn ask(service: &Service, path: &str) -> serde_json::Value {
    let address = service.address();
    let (rest, token) = address.split_once("/#token=").unwrap();
    let host = rest.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Kpat-Token: {token}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find(|l| l.starts_with("{\"result\"")).unwrap_or_else(|| panic!("{text}"));
    serde_json::from_str::<serde_json::Value>(line).unwrap()["result"].clone()
}

#[test]
fn a_recording_is_followed_to_its_end() {
    let folder = Folder::new("server-live");
    let whole = std::fs::read(recorded(&folder)).unwrap();
    let kbl = folder.0.join("growing.kbl");
    // Its last bytes are not written yet.
    std::fs::write(&kbl, &whole[..whole.len() - 20]).unwrap();
    let mut growing = Growing::open(&kbl, &[]).unwrap();
    assert!(!growing.is_over());
    let first = growing.log();
    let service = Service::start(&Start { log: first.clone(), compare: None, port: 0 }).unwrap();
    service.rename("growing.kbl");
    let answering = Arc::clone(&service);
    std::thread::spawn(move || answering.run());
    let before = ask(&service, "/api/info");
    assert_eq!(before["name"], "growing.kbl");

    let leave = Arc::new(AtomicBool::new(false));
    let following = {
        let (service, leave) = (Arc::clone(&service), Arc::clone(&leave));
        std::thread::spawn(move || {
            growing.follow(&service, &leave);
            growing
        })
    };
    std::fs::write(&kbl, &whole).unwrap();
    // It ends by itself, because the log was closed.
    let growing = following.join().unwrap();
    assert!(growing.is_over() && !service.is_live());
    let after = ask(&service, "/api/info");
    assert!(after["generation"].as_u64() > before["generation"].as_u64());
    assert_eq!((&after["live"], &after["name"]), (&false.into(), &"growing.kbl".into()));
    assert!(after["notes"].as_array().unwrap().iter().all(|n| !n.as_str().unwrap().contains("not closed")));
    let parent = first.parent().unwrap().to_owned();
    assert!(parent.is_dir());
    drop(growing);
    assert!(!parent.exists(), "the folder goes away");

    // Whoever leaves does not wait for the end.
    std::fs::write(&kbl, &whole[..whole.len() - 20]).unwrap();
    let mut growing = Growing::open(&kbl, &[]).unwrap();
    leave.store(true, Ordering::Relaxed);
    growing.follow(&service, &leave);
}
