use super::*;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;

/// A QEMU that answers from a script: what it sends after each line that came.
fn peer_with(name: &str, greeting: &'static str, answers: Vec<&'static str>) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kpat-qmp-{}-{name}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let place = path.clone();
    std::thread::spawn(move || {
        let (mut s, _) = listener.accept().unwrap();
        let _ = std::fs::remove_file(place);
        s.write_all(greeting.as_bytes()).unwrap();
        let mut lines = BufReader::new(s.try_clone().unwrap()).lines();
        for a in answers {
            let Some(Ok(line)) = lines.next() else { return };
            let id = serde_json::from_str::<Value>(&line).unwrap()["id"].to_string();
            s.write_all(a.replace("ID", &id).as_bytes()).unwrap();
        }
    });
    path
}

const HELLO: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}}, \"capabilities\": []}}\r\n";
const OK: &str = "{\"return\": {}, \"id\": ID}\r\n";

#[test]
fn events_before_an_answer_are_kept() {
    let path = peer_with(
        "events",
        HELLO,
        vec![
            OK,
            "{\"event\": \"STOP\", \"timestamp\": {\"seconds\": 1, \"microseconds\": 2}}\r\n{\"return\": 1, \"id\": 77}\n\
             {\"return\": {\"status\": \"running\"}, \"id\": ID}\r\n{\"event\": \"RESET\", \"data\": {\"guest\": true}}\n",
        ],
    );
    let q = Qmp::connect(&path).unwrap();
    assert_eq!((q.version(), q.peer()), ("7.2.22", Some(std::process::id())));
    assert_eq!(q.command("query-status", json!({})).unwrap()["status"], "running");
    let e = q.event(Duration::ZERO).unwrap().unwrap();
    assert_eq!((e.name.as_str(), e.at_wall_us), ("STOP", 1_000_002));
    let e = q.event(Duration::from_secs(1)).unwrap().unwrap();
    assert_eq!((e.name.as_str(), &e.data["guest"]), ("RESET", &json!(true)));
    // The script is at its end.
    assert!(matches!(q.event(Duration::from_secs(5)), Err(Error::Gone(_))));
}

#[test]
fn refusals_and_foreign_words() {
    let path = peer_with(
        "refusal",
        HELLO,
        vec![OK, "{\"id\": ID, \"error\": {\"class\": \"C\", \"desc\": \"no such thing\"}}\n", "not json\n"],
    );
    let q = Qmp::connect(&path).unwrap();
    let refused = q.command("x", json!({})).unwrap_err();
    assert_eq!(refused.to_string(), "QEMU refused x: no such thing");
    assert!(matches!(q.command("x", json!({})), Err(Error::Damaged { .. })));
    let other = Qmp::connect(&peer_with("http", "HTTP/1.1 400 Bad Request\r\n\r\n", vec![])).err().unwrap();
    assert!(matches!(other, Error::Damaged { .. }), "{other}");
    let json = Qmp::connect(&peer_with("json", "{}\n", vec![])).err().unwrap();
    assert!(matches!(json, Error::NoGuest(_)), "{json}");
}

/// As QEMU's is once two others wait at it: the kernel lets a further one wait until there is room.
#[test]
fn a_socket_with_a_full_queue_is_refused_in_time() {
    let folder = std::env::temp_dir().join(format!("kpat-full-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("qmp");
    let server = UnixListener::bind(&path).unwrap();
    // SAFETY: it is a socket that listens; that again only makes its queue shorter.
    assert_eq!(unsafe { libc::listen(server.as_raw_fd(), 0) }, 0);
    let waits = UnixStream::connect(&path).unwrap();
    let (answer, refused) = std::sync::mpsc::channel();
    let at = path.clone();
    std::thread::spawn(move || answer.send(Qmp::connect(&at).err().map(|e| e.to_string())));
    let words = refused.recv_timeout(Duration::from_secs(30)).expect("it does not wait without end").unwrap();
    assert!(words.contains("another program has it"), "{words}");
    drop(waits);
    std::fs::remove_dir_all(folder).unwrap();
}
