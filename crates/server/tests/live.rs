//! A recording that goes on: the page gets what is there, then the rest, and nothing is left behind.

use crate::asking;
use crate::fixture;

use asking::serve;
use fixture::{Folder, recorded};
use kpat_server::Growing;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    let running = serve(&first, None);
    let service = &running.service;
    service.rename("growing.kbl");
    let before = running.ask("/api/info");
    assert_eq!(before["name"], "growing.kbl");

    let leave = Arc::new(AtomicBool::new(false));
    let following = {
        let (service, leave) = (Arc::clone(service), Arc::clone(&leave));
        std::thread::spawn(move || {
            growing.follow(&service, &leave);
            growing
        })
    };
    std::fs::write(&kbl, &whole).unwrap();
    // It ends by itself, because the log was closed.
    let growing = following.join().unwrap();
    assert!(growing.is_over() && !service.is_live());
    let after = running.ask("/api/info");
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
    growing.follow(service, &leave);
}
