//! A device and a gathering side over a real socket: what arrives is what was sent, once, whatever breaks; and a device
//! can add its own files and do nothing else.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_collect::list::{clock, list};
use kpat_collect::receive::Service;
use kpat_collect::send::{Access, Event, Round, Sender, round};
use kpat_collect::shelf::{Have, Item, Shelf, Unadded, is_file_name};
use kpat_collect::spool::Spool;
use kpat_collect::{Error, Notice, of_bytes, token};
use kpat_klog::{Codec, Encoder, Writer};
use kpat_model::meta::{ClockAnchor, Json, LossTotal, Meta, Part, ROTATED, Summary};
use kpat_model::{BootNs, Context, Event as Record, EventKind, PacketId, Timed, WallNs};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("kpat-collect-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        for sub in ["spool", "shelf"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        Dir(dir)
    }

    fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    fn shelf(&self) -> PathBuf {
        self.0.join("shelf")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const S: i64 = 1_000_000_000;
const WALL: i64 = 1_800_000_000 * S;
/// One in a hundred has two at the same moment.
const ROUNDS: usize = 200;

fn anchor(boot: i64, wall: i64) -> ClockAnchor {
    ClockAnchor { boot: BootNs(boot), wall: WallNs(wall), uncertainty_ns: 50 }
}

/// File `number` of a recording, ten seconds long, with `number` records; the wall clock is `ahead` of where it was.
fn log(dir: &Path, recording: &str, number: u32, ahead: i64, end: Option<&str>) -> PathBuf {
    let path = dir.join(format!("{recording}-{number:04}.kbl"));
    let start = i64::from(number) * 10 * S;
    let began = anchor(start, WALL + start + ahead);
    let records_before = u64::from(number * (number - 1) / 2);
    let part = Part { recording: recording.into(), number, began, records_before };
    let started = anchor(10 * S, WALL + 10 * S);
    let mut w = Writer::create(&path).unwrap();
    w.json(&Json::Meta(Box::new(Meta { part, started, boot_id: "boot".into(), ..Meta::default() }))).unwrap();
    let mut e = Encoder::new(0, Codec::None);
    for i in 0..number {
        e.event(&Record {
            kind: EventKind::Control,
            ctx: Context::Task,
            pid: 1,
            at: BootNs(start + i64::from(i) * 1000),
            timed: Timed::Recorder,
            packet: PacketId::NONE,
            netns: 0,
            a: 0,
            b: 0,
            text: "x".into(),
        });
    }
    w.chunk(e.finish().unwrap()).unwrap();
    if let Some(reason) = end {
        let losses = vec![LossTotal { cause: "ring-full".into(), cpu: 1, count: 2 }];
        let summary = Summary {
            complete: true,
            end_reason: reason.into(),
            at: anchor(start + 10 * S, WALL + start + 10 * S + ahead),
            records: number.into(),
            losses,
            ..Summary::default()
        };
        w.json(&Json::Summary(Box::new(summary))).unwrap();
    }
    path
}

/// A receiver; gives its address.
fn receiver(root: &Path, limit: Option<u64>) -> String {
    let service = Service::bind(root, "127.0.0.1:0".parse().unwrap(), limit).unwrap();
    let at = service.address().unwrap().to_string();
    std::thread::spawn(move || service.run(Arc::new(|_| ())));
    at
}

fn access(token: &str) -> Access {
    Access { device: "dev".into(), token: Some(token.into()), ..Access::default() }
}

fn go(spool: &Path, limit: Option<u64>, target: &str, token: &str) -> Result<Round, Error> {
    let spool = Spool::open(spool, limit).unwrap();
    round(&spool, &mut Sender::new(target, &access(token)).unwrap(), &mut |_| ())
}

/// One request as it is; the status and headers of its answer.
fn ask(at: &str, request: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let _ = stream.write_all(body);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn put(name: &str, token: &str, body: &[u8], offset: usize, whole: &[u8]) -> String {
    format!(
        "PUT /v1/{name} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\nx-kpat-offset: {offset}\r\n\
         x-kpat-size: {}\r\nx-kpat-sha256: {}\r\n\r\n",
        body.len(),
        whole.len(),
        of_bytes(whole).text()
    )
}

/// Where the part of a file lies that came before its connection broke.
fn incoming(dir: &Dir, whole: &[u8]) -> PathBuf {
    dir.shelf().join("dev/.incoming").join(format!("{}.{}", of_bytes(whole).text(), whole.len()))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|n| !n.starts_with('.')).collect();
    names.sort();
    names
}

#[test]
fn what_is_sent_arrives_once_and_whole() {
    let dir = Dir::new("once");
    let at = receiver(&dir.shelf(), None);
    let token = token::add(&dir.shelf(), "dev").unwrap();
    let target = format!("http://{at}");
    let mut contents = Vec::new();
    for n in 1..4 {
        contents.push(fs::read(log(&dir.spool(), "r", n, 0, Some(ROTATED))).unwrap());
    }
    let mut written = Writer::create_part(&dir.spool().join("r-0009.kbl.part")).unwrap();
    written.json(&Json::Devices(Vec::new())).unwrap();
    assert_eq!(go(&dir.spool(), None, &target, &token).unwrap().sent, 3);
    assert_eq!(names(&dir.spool()), ["r-0009.kbl.part"]);
    // Only what is not finished stays, and the shelf has the same bytes.
    let shelf = dir.shelf().join("dev");
    assert_eq!(names(&shelf), ["r-0001.kbl", "r-0002.kbl", "r-0003.kbl"]);
    for (n, bytes) in contents.iter().enumerate() {
        assert!(fs::read(shelf.join(format!("r-000{}.kbl", n + 1))).unwrap() == *bytes);
    }
    // The answer to the first was lost, say: sending again changes nothing.
    log(&dir.spool(), "r", 1, 0, Some(ROTATED));
    let mut there = false;
    let spool = Spool::open(&dir.spool(), None).unwrap();
    let mut sender = Sender::new(&target, &access(&token)).unwrap();
    round(&spool, &mut sender, &mut |e| there |= matches!(e, Event::Sent { there: true, .. })).unwrap();
    assert!(there);
    assert_eq!(names(&shelf).len(), 3);
    // The same name with another content is another file.
    fs::write(dir.spool().join("r-0001.kbl"), "another recorder's").unwrap();
    go(&dir.spool(), None, &target, &token).unwrap();
    assert_eq!(names(&shelf).len(), 4);
    assert!(fs::read(shelf.join("r-0001.kbl")).unwrap() == contents[0]);
    assert!(
        names(&shelf).iter().any(|n| n.starts_with("r-0001~") && n.ends_with(".kbl")),
        "{:?}",
        names(&shelf)
    );
}

#[test]
fn a_transfer_that_broke_goes_on_where_it_broke() {
    let dir = Dir::new("broke");
    let at = receiver(&dir.shelf(), None);
    let token = token::add(&dir.shelf(), "dev").unwrap();
    let whole: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    // The connection ends after a part of the bytes.
    let head = put("big.kbl", &token, &whole, 0, &whole);
    ask(&at, &head, &whole[..200_000]);
    let item = Item { name: "big.kbl".into(), bytes: whole.len() as u64, digest: of_bytes(&whole) };
    let shelf = Shelf::open(&dir.shelf(), "dev", None).unwrap();
    assert_eq!(shelf.have(&item).unwrap(), Have::Part(200_000));
    assert_eq!(names(&dir.shelf().join("dev")), [] as [&str; 0]);
    // From where it broke on the part is marked, so that sending it all would give other bytes.
    let part = incoming(&dir, &whole);
    let before = fs::metadata(&part).unwrap().len();
    fs::write(dir.spool().join("big.kbl"), &whole).unwrap();
    let done = go(&dir.spool(), None, &format!("http://{at}"), &token).unwrap();
    assert_eq!((before, done.sent), (200_000, 1));
    assert!(fs::read(dir.shelf().join("dev/big.kbl")).unwrap() == whole);
    assert!(!part.exists());
    // A part that went bad is thrown away, not kept under the name.
    fs::write(incoming(&dir, b"good content"), "bad!").unwrap();
    fs::write(dir.spool().join("bad.kbl"), "good content").unwrap();
    let done = go(&dir.spool(), None, &format!("http://{at}"), &token).unwrap();
    assert_eq!(done.refused, ["bad.kbl"]);
    let done = go(&dir.spool(), None, &format!("http://{at}"), &token).unwrap();
    assert_eq!(
        (done.sent, fs::read(dir.shelf().join("dev/bad.kbl")).unwrap()),
        (1, b"good content".to_vec())
    );
}

#[test]
fn a_device_adds_its_own_files_and_does_nothing_else() {
    let dir = Dir::new("nothing-else");
    let at = receiver(&dir.shelf(), None);
    let (mine, other) =
        (token::add(&dir.shelf(), "dev").unwrap(), token::add(&dir.shelf(), "other").unwrap());
    assert!(
        ask(&at, &put("a.kbl", &mine, b"precious", 0, b"precious"), b"precious").starts_with("HTTP/1.1 201")
    );
    let tree = |root: &Path| {
        let mut all = Vec::new();
        let mut open = vec![root.to_owned()];
        while let Some(d) = open.pop() {
            for e in fs::read_dir(d).unwrap().flatten() {
                if e.path().is_dir() {
                    open.push(e.path())
                } else {
                    all.push((e.path(), fs::read(e.path()).unwrap()))
                }
            }
        }
        all.sort();
        all
    };
    let before = tree(&dir.0);
    // No path leads out, none is hidden, none is a token file or another kind of file.
    for name in [
        "../other/x.kbl",
        "%2e%2e/x.kbl",
        "..%2fx.kbl",
        ".tokens",
        ".sums/a.kbl",
        "a/b.kbl",
        "x.txt",
        "",
        "a.kbl/",
        "-x.kbl",
        "x%00.kbl",
        "é.kbl",
    ] {
        let answer = ask(&at, &put(name, &mine, b"evil", 0, b"evil"), b"evil");
        assert!(answer.starts_with("HTTP/1.1 400") || answer.is_empty(), "{name}: {answer}");
    }
    // No replacing, no reading, no listing, no removing.
    let sum = of_bytes(b"precious");
    let headers =
        format!("authorization: Bearer {mine}\r\nx-kpat-size: 8\r\nx-kpat-sha256: {}\r\n", sum.text());
    for method in ["GET", "DELETE", "POST", "PATCH", "OPTIONS", "PROPFIND"] {
        let answer = ask(&at, &format!("{method} /v1/a.kbl HTTP/1.1\r\nhost: a\r\n{headers}\r\n"), b"");
        assert!(answer.starts_with("HTTP/1.1 405"), "{method}: {answer}");
        assert!(!answer.contains("precious"));
    }
    for path in ["/", "/v1/", "/v1", "/metrics", "*", "http://HOST/v1/a.kbl"] {
        let answer = ask(&at, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n"), b"");
        assert!(answer.starts_with("HTTP/1.1 400"), "{path}: {answer}");
    }
    // Lengths that lie, heads that do not end, bodies in chunks, no token, half a token, two tokens.
    let lie = put("b.kbl", &mine, b"12345", 3, b"12345");
    assert!(ask(&at, &lie, b"12345").starts_with("HTTP/1.1 400"));
    assert!(ask(&at, &put("b.kbl", &mine, b"", 99, b"12345"), b"").starts_with("HTTP/1.1 400"));
    let wrong = put("b.kbl", &mine, b"12345", 0, b"12345");
    assert!(ask(&at, &wrong, b"1234X").starts_with("HTTP/1.1 422"));
    assert!(ask(&at, &"x: y\r\n".repeat(9000), b"").starts_with("HTTP/1.1 400"));
    assert!(ask(&at, &put("b.kbl", &mine, b"", 0, b""), b"").starts_with("HTTP/1.1 400"), "an empty file");
    let chunked = format!("PUT /v1/b.kbl HTTP/1.1\r\nhost: a\r\n{headers}transfer-encoding: chunked\r\n\r\n");
    assert!(ask(&at, &chunked, b"8\r\nprecious\r\n0\r\n\r\n").starts_with("HTTP/1.1 400"));
    for token in ["", &mine[..40], "x"] {
        assert!(ask(&at, &put("b.kbl", token, b"1", 0, b"1"), b"1").starts_with("HTTP/1.1 401"), "{token}");
    }
    let two = put("b.kbl", &mine, b"1", 0, b"1")
        .replace("x-kpat-offset", &format!("authorization: Bearer {other}\r\nx-kpat-offset"));
    assert!(ask(&at, &two, b"1").starts_with("HTTP/1.1 400"));
    // What others have is not even acknowledged.
    let head = format!("HEAD /v1/a.kbl HTTP/1.1\r\nhost: a\r\n{}\r\n", headers.replace(&mine, &other));
    assert!(ask(&at, &head, b"").starts_with("HTTP/1.1 404"));
    let after: Vec<_> =
        tree(&dir.0).into_iter().filter(|(p, _)| !p.to_string_lossy().contains(".incoming")).collect();
    assert!(after == before, "something changed");
    // A token that was taken away is nobody's.
    assert_eq!(token::revoke(&dir.shelf(), "dev").unwrap(), 1);
    assert!(ask(&at, &put("c.kbl", &mine, b"1", 0, b"1"), b"1").starts_with("HTTP/1.1 401"));
    assert!(ask(&at, &put("c.kbl", &other, b"1", 0, b"1"), b"1").starts_with("HTTP/1.1 201"));
}

/// The body of a refused request is never the next request: a proxy that reuses connections would give its answer to another.
#[test]
fn no_request_hides_in_another() {
    let dir = Dir::new("hidden");
    let at = receiver(&dir.shelf(), None);
    let token = token::add(&dir.shelf(), "dev").unwrap();
    let body = b"hidden";
    let hidden = [put("hidden.kbl", &token, body, 0, body).as_bytes(), body].concat();
    let sum = of_bytes(b"x");
    let known =
        format!("authorization: Bearer {token}\r\nx-kpat-size: 1\r\nx-kpat-sha256: {}\r\n", sum.text());
    let len = hidden.len();
    for (method, fields) in [
        ("HEAD", format!("{known}content-length: {len}\r\n")),
        ("HEAD", format!("content-length: {len}\r\n")),
        ("GET", format!("{known}content-length: {len}\r\n")),
        ("PUT", format!("content-length: 0\r\ncontent-length: {len}\r\n")),
        ("PUT", format!("{known}content-length: {len}\r\ncontent-length: {len}\r\n")),
        ("PUT", format!("{known}x-kpat-offset: 1\r\ntransfer-encoding: chunked\r\n")),
        ("PUT", format!("{known}x-kpat-offset: 1\r\ncontent-length: 0\r\ntransfer-encoding: chunked\r\n")),
        ("PUT", format!("{known}x-kpat-offset: 1\r\ncontent-length: +0\r\n")),
        ("PUT", format!("{known}x-kpat-offset: 1\ncontent-length: 0\r\n")),
    ] {
        let answer = ask(&at, &format!("{method} /v1/a.kbl HTTP/1.1\r\nhost: a\r\n{fields}\r\n"), &hidden);
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{method} {fields}: {answer}");
        assert!(
            answer.starts_with("HTTP/1.1 4") && answer.contains("connection: close"),
            "{method} {fields}: {answer}"
        );
        assert!(!dir.shelf().join("dev/hidden.kbl").exists(), "{method} {fields}");
    }
}

/// Whatever stands between may confuse connections: an answer that is not of this very request removes nothing.
#[test]
fn an_answer_for_another_removes_nothing() {
    let dir = Dir::new("confused");
    log(&dir.spool(), "r", 1, 0, Some(ROTATED));
    let whole = fs::read(dir.spool().join("r-0001.kbl")).unwrap();
    let sum = of_bytes(&whole).text().to_owned();
    let named =
        format!("x-kpat-name: r-0001.kbl\r\nx-kpat-size: {}\r\nx-kpat-sha256: {sum}\r\n", whole.len());
    let stale = format!("{named}x-kpat-request: 00000000000000000000000000000000\r\n");
    for fields in ["", &named, &stale] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap());
        let fields = fields.to_owned();
        let proxy = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n").unwrap();
        });
        assert!(matches!(go(&dir.spool(), None, &target, "t"), Err(Error::Away(_))));
        proxy.join().unwrap();
        assert_eq!(names(&dir.spool()), ["r-0001.kbl"]);
    }
}

/// A file that was cut, or another of that name and length, is not the one that was added.
#[test]
fn what_was_changed_on_the_shelf_is_not_confirmed() {
    let dir = Dir::new("changed");
    let at = receiver(&dir.shelf(), None);
    let token = token::add(&dir.shelf(), "dev").unwrap();
    let put = |body: &[u8]| ask(&at, &put("a.kbl", &token, body, 0, body), body)[..12].to_owned();
    let is_there = |body: &[u8]| {
        let (size, sum) = (body.len(), of_bytes(body));
        let head = format!(
            "HEAD /v1/a.kbl HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\nx-kpat-size: {size}\r\nx-kpat-sha256: {}\r\n\r\n",
            sum.text()
        );
        ask(&at, &head, b"").starts_with("HTTP/1.1 200")
    };
    assert_eq!(put(b"precious"), "HTTP/1.1 201");
    assert!(is_there(b"precious"));
    fs::write(dir.shelf().join("dev/a.kbl"), b"prec").unwrap();
    assert!(!is_there(b"precious"));
    // Taken away, and another sent under its name.
    fs::remove_file(dir.shelf().join("dev/a.kbl")).unwrap();
    assert_eq!(put(b"other"), "HTTP/1.1 201");
    assert!(is_there(b"other") && !is_there(b"precious"));
}

#[test]
fn a_device_has_its_share_and_no_more() {
    let dir = Dir::new("share");
    let at = receiver(&dir.shelf(), Some(30 << 10));
    let token = token::add(&dir.shelf(), "dev").unwrap();
    let send = |name: &str, n: usize| {
        let body = vec![name.as_bytes()[0]; n];
        ask(&at, &put(name, &token, &body, 0, &body), &body)[..12].to_owned()
    };
    // A file takes whole blocks, and two more.
    assert_eq!(send("a.kbl", 600), "HTTP/1.1 201");
    assert_eq!(send("b.kbl", 20_000), "HTTP/1.1 507");
    assert_eq!(send("c.kbl", 1), "HTTP/1.1 201");
    fs::write(dir.spool().join("d.kbl"), [1; 600]).unwrap();
    match go(&dir.spool(), None, &format!("http://{at}"), &token) {
        Err(Error::Away(why)) => assert!(why.contains("its share at the target, 30720 bytes"), "{why}"),
        other => panic!("{:?}", other.map(|round| round.sent)),
    }
    assert!(dir.spool().join("d.kbl").exists());
}

/// Also while a file becomes whole as another asks how much there is, which few of the rounds have.
#[test]
fn a_share_holds_for_many_at_once() {
    for round in 0..ROUNDS {
        let dir = Dir::new(&format!("at-once-{round}"));
        let at = receiver(&dir.shelf(), Some(1 << 20));
        let token = token::add(&dir.shelf(), "dev").unwrap();
        let statuses: Vec<String> = std::thread::scope(|s| {
            let one = |i: u8| {
                let (at, token) = (&at, &token);
                s.spawn(move || {
                    let body = vec![i; 300 << 10];
                    ask(at, &put(&format!("f{i}.kbl"), token, &body, 0, &body), &body)[..12].to_owned()
                })
            };
            let all: Vec<_> = (0..20).map(one).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let count = |status: &str| statuses.iter().filter(|s| s.ends_with(status)).count();
        assert_eq!((count("201"), count("507")), (3, 17), "{round}: {statuses:?}");
    }
}

/// Connections that show no token and never finish a head.
#[test]
fn slow_strangers_keep_no_device_out() {
    let dir = Dir::new("slow");
    let at = receiver(&dir.shelf(), None);
    let token = token::add(&dir.shelf(), "dev").unwrap();
    let half = |_| {
        let mut stream = TcpStream::connect(&at).unwrap();
        stream.write_all(b"PUT /v1/a.kbl HTTP/1.1\r\nx: ").unwrap();
        stream
    };
    let slow: Vec<TcpStream> = (0..200).map(half).collect();
    for n in 1..4 {
        log(&dir.spool(), "r", n, 0, Some(ROTATED));
        assert_eq!(go(&dir.spool(), None, &format!("http://{at}"), &token).unwrap().sent, 1);
    }
    drop(slow);
}

#[test]
fn names_are_plain() {
    for good in ["a.kbl", "router-20260131T120000Z-0001.kbl", "lost-12.json", "a~0123.kbl", "A_b+c.kbl"] {
        assert!(is_file_name(good), "{good}");
    }
    for bad in [
        "",
        ".kbl",
        "a",
        "a.kbl.part",
        "x.json",
        "a b.kbl",
        "a\n.kbl",
        "a/b.kbl",
        &format!("{}.kbl", "a".repeat(130)),
    ] {
        assert!(!is_file_name(bad), "{bad}");
    }
    assert!(Shelf::open(Path::new("/nonexistent"), "../x", None).is_err());
}

#[test]
fn two_who_send_the_same_do_not_mix() {
    let dir = Dir::new("same");
    let shelf = Shelf::open(&dir.shelf(), "dev", None).unwrap();
    let item = Item { name: "a.kbl".into(), bytes: 6, digest: of_bytes(b"abcdef") };
    // One who brings bytes that do not begin where the part ends gets its end.
    assert!(matches!(shelf.add(&item, 0, &mut &b"abc"[..]), Err(Unadded::Broken(_))));
    assert!(matches!(shelf.add(&item, 0, &mut &b"abcdef"[..]), Err(Unadded::Busy(Have::Part(3)))));
    shelf.add(&item, 3, &mut &b"def"[..]).unwrap();
    assert!(matches!(shelf.add(&item, 0, &mut &b"abcdef"[..]), Err(Unadded::Busy(Have::Whole))));
}

#[test]
fn when_the_far_end_is_away_the_oldest_go_and_that_is_told() {
    let dir = Dir::new("away");
    let spool = dir.spool();
    for n in 1..=6 {
        log(&spool, "r", n, 0, Some(ROTATED));
    }
    let each = fs::metadata(spool.join("r-0006.kbl")).unwrap().len();
    // Nobody listens there.
    let nobody = "http://127.0.0.1:9";
    assert!(matches!(go(&spool, None, nobody, "t"), Err(Error::Away(_))));
    assert_eq!(names(&spool).len(), 6);
    assert!(matches!(go(&spool, Some(4 * each + each / 2), nobody, "t"), Err(Error::Away(_))));
    assert!(matches!(go(&spool, Some(2 * each + each / 2 + 600), nobody, "t"), Err(Error::Away(_))));
    let left = names(&spool);
    let notices: Vec<&String> = left.iter().filter(|n| n.starts_with("lost-")).collect();
    assert_eq!(notices.len(), 1, "{left:?}");
    let notice = Notice::read(&spool.join(notices[0])).unwrap();
    let t = &notice.thrown[0];
    assert_eq!((notice.thrown.len(), t.first), (1, 1));
    assert!((3..=5).contains(&t.last), "{t:?}");
    assert_eq!((t.files, t.records), (t.last, u64::from(t.last * (t.last + 1) / 2)));
    assert_eq!((t.from_boot_ns, t.to_boot_ns), (10 * S, i64::from(t.last) * 10 * S + 10 * S));
    // It is back: the rest arrives with the notice, and the gap is known.
    let last = t.last;
    go(&spool, None, &dir.shelf().display().to_string(), "t").unwrap();
    assert_eq!(names(&spool), [] as [&str; 0]);
    let devices = list(&dir.shelf()).unwrap();
    let gap = &devices[0].gaps[0];
    assert_eq!((devices[0].gaps.len(), gap.kind, gap.first_file, gap.last_file), (1, "files", 1, last));
    assert_eq!((gap.thrown_away, gap.records), (true, Some(u64::from(last * (last + 1) / 2))));
}

#[test]
fn what_is_missing_is_listed() {
    let dir = Dir::new("list");
    let shelf = dir.shelf().join("router");
    fs::create_dir_all(&shelf).unwrap();
    fs::create_dir_all(dir.shelf().join("bad\x1bname")).unwrap();
    log(&shelf, "r", 1, 0, Some(ROTATED));
    log(&shelf, "r", 2, 0, Some(ROTATED));
    // Between the second and the fifth the clock was set back by an hour.
    log(&shelf, "r", 5, -3600 * S, None);
    log(&shelf, "s", 8, -3600 * S, Some("stopped"));
    fs::copy(shelf.join("r-0002.kbl"), shelf.join("again.kbl")).unwrap();
    fs::write(shelf.join("junk.kbl"), "not a log").unwrap();
    let devices = list(&dir.shelf()).unwrap();
    assert_eq!(devices.len(), 1);
    let d = &devices[0];
    assert_eq!((d.name.as_str(), d.files, d.records, d.unreadable.len()), ("router", 6, 1 + 2 + 5 + 8, 1));
    assert_eq!(d.losses, [LossTotal { cause: "ring-full".into(), cpu: 1, count: 6 }]);
    let kinds: Vec<_> = d.gaps.iter().map(|g| (g.kind, g.first_file, g.last_file, g.records)).collect();
    assert!(kinds.contains(&("files", 3, 4, Some(7))), "{kinds:?}");
    assert!(kinds.contains(&("killed", 5, 5, None)), "{kinds:?}");
    assert!(kinds.contains(&("files", 1, 7, Some(28))), "{kinds:?}");
    let r = d.recordings.iter().find(|r| r.recording == "r").unwrap();
    assert_eq!((r.first_file, r.last_file, r.files, r.end.as_str()), (1, 5, 3, "open"));
    assert_eq!(r.clock.steps.len(), 1);
    assert_eq!(r.clock.steps[0].by_ns, -3600 * S);
}

#[test]
fn drift_is_no_step_and_a_step_is_no_drift() {
    // 20 parts in a million fast, read every 5 s, each reading good to 50 ns.
    let fast = |boot: i64| boot + WALL + boot / 1_000_000 * 20;
    let readings: Vec<ClockAnchor> = (0..100).map(|i| anchor(i * 5 * S, fast(i * 5 * S))).collect();
    let c = clock(&readings);
    assert_eq!((c.readings, c.steps.len(), c.uncertainty_ns), (100, 0, 50));
    assert!((c.drift_ppm.unwrap() - 20.0).abs() < c.drift_bound_ppm.unwrap() + 1e-6, "{c:?}");
    // 3 ms are more than a clock can be slewed in 5 s.
    let stepped: Vec<ClockAnchor> = readings
        .iter()
        .map(|a| if a.boot.0 > 300 * S { anchor(a.boot.0, a.wall.0 + 3_000_000) } else { *a })
        .collect();
    let c = clock(&stepped);
    assert_eq!(c.steps.len(), 1);
    assert_eq!((c.steps[0].after_boot_ns, c.steps[0].before_boot_ns), (300 * S, 305 * S));
    assert!((c.steps[0].by_ns - 3_000_000).abs() <= 5 * 20_000, "{c:?}");
    assert!((c.drift_ppm.unwrap() - 20.0).abs() < 0.01, "{c:?}");
    assert_eq!(clock(&[]).drift_ppm, None);
}

/// Root gives out a token in the folder of a service's user, who has to be able to read it and could have put a link where it is written.
#[test]
fn tokens_are_the_folders_owners() {
    use std::os::unix::fs::{MetadataExt, chown, symlink};
    let dir = Dir::new("owner");
    if chown(dir.shelf(), Some(64_031), Some(64_031)).is_err() {
        println!("skipped: whose the tokens are: only root can give a folder away");
        return;
    }
    let foreign = dir.spool().join("foreign");
    fs::write(&foreign, "root's").unwrap();
    symlink(&foreign, dir.shelf().join(".tokens.new")).unwrap();
    let token = token::add(&dir.shelf(), "dev").unwrap();
    let m = fs::symlink_metadata(dir.shelf().join(".tokens")).unwrap();
    assert_eq!((m.uid(), m.gid(), m.mode() & 0o7777, m.is_file()), (64_031, 64_031, 0o600, true));
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "root's");
    assert_eq!(token::device(&dir.shelf(), &token).unwrap().as_deref(), Some("dev"));
}
