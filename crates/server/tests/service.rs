//! The service over a real store, asked over real sockets: every question, and who may not ask.

use crate::asking;
use crate::fixture;

use asking::{Running, send, serve};
use fixture::{Folder, START, integrated};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The fixture's log, served and compared with itself; the folder goes at the end.
fn start(name: &str) -> (Running, Folder) {
    let folder = Folder::new(&format!("server-{name}"));
    let log = integrated(&folder);
    (serve(&log, Some(&log)), folder)
}

/// Percent signs for everything that is not plain.
fn coded(text: &str) -> String {
    text.bytes()
        .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

#[test]
fn every_question_has_its_answer() {
    let (s, _folder) = start("all");
    let info = s.ask("/api/info");
    assert_eq!((&info["name"], &info["host"]), (&"x.kpat".into(), &"router".into()));
    assert_eq!(info["counts"]["packets"], 4);
    assert_eq!(info["captures"].as_array().unwrap().len(), 2);
    assert!(
        info["fields"]
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f["name"] == "path_time" && f["kind"] == "duration")
    );
    assert_eq!(info["compare"], "x.kpat");

    let list = s.ask("/api/packets");
    assert_eq!((&list["rows"], &list["total"], &list["all"]), (&4.into(), &4.into(), &4.into()));
    assert_eq!(list["columns"]["id"], serde_json::json!([1, 2, 3, 4]));
    assert_eq!(list["columns"]["frame"][0], "lan:17");
    assert_eq!(list["columns"]["verdict"][2], "dropped");
    assert_eq!(list["columns"]["src"][3], "[2001:db8:0:1::10]:51234");
    // Names are data of strangers: they stay what they are, in a string.
    assert_eq!(list["columns"]["process"][1], "nc\u{1b}[31m");

    let sorted = s.ask("/api/packets?sort=path_ns&desc=1");
    assert_eq!(sorted["columns"]["id"], serde_json::json!([2, 4, 1, 3]));
    let page = s.ask("/api/packets?from=1&count=2");
    assert_eq!(page["columns"]["id"], serde_json::json!([2, 3]));
    for (filter, ids) in [
        ("udp", vec![2, 3]),
        ("udp and not dropped", vec![2]),
        ("ip.addr == 2001:db8::/32", vec![4]),
        ("func ip_forward", vec![1]),
        ("func == udp_queue_rcv_one_skb or tcp", vec![2, 4]),
        ("process contains nc", vec![2]),
        ("drop", vec![3]),
        ("if_out == wan", vec![1]),
        ("frame == 17", vec![1]),
        ("path > 3ms and path < 1s", vec![2]),
        ("port in {443, 33434}", vec![3, 4]),
    ] {
        let found = s.ask(&format!("/api/packets?where={}", coded(filter)));
        assert_eq!(found["columns"]["id"], serde_json::json!(ids), "{filter}");
        let checked = s.ask(&format!("/api/check?where={}", coded(filter)));
        let quick = !filter.contains("func");
        assert_eq!(checked["rows"].as_u64(), quick.then_some(ids.len() as u64), "{filter}");
    }
    assert_eq!(s.ask("/api/packets/at?id=3")["index"], 2);
    assert_eq!(s.ask("/api/packets/at?id=3&where=udp")["index"], 1);
    assert_eq!(s.ask("/api/packets/at?id=3&sort=path_ns&desc=1")["index"], 3);
    assert!(s.ask("/api/packets/at?id=1&where=udp")["index"].is_null());

    let overview = s.ask("/api/overview?bins=4");
    let sum = |name: &str| -> u64 {
        overview["bins"][name].as_array().unwrap().iter().filter_map(Value::as_u64).sum()
    };
    assert_eq!((sum("packets"), sum("drops")), (4, 1));

    let packet = s.ask("/api/packet?id=1");
    assert_eq!(packet["calls"].as_array().unwrap().len(), 14);
    assert_eq!(packet["frames"].as_array().unwrap().len(), 2);
    let fields: Vec<&Value> =
        packet["layers"].as_array().unwrap().iter().flat_map(|l| l["fields"].as_array().unwrap()).collect();
    assert!(fields.iter().any(|f| f["name"] == "TTL" && f["value"] == "64" && f["changed"] == "63"));
    assert!(fields.iter().any(|f| f["name"] == "id" && f["matched"] == true));
    let whole: i64 = packet["segments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["to"].as_i64().unwrap() - s["from"].as_i64().unwrap())
        .sum();
    assert_eq!(whole, 93_000, "segments make up the path time");
    assert_eq!(packet["row"]["path_ns"], 93_000);
    for call in packet["calls"].as_array().unwrap() {
        let parent = call["parent"].as_i64();
        let known = packet["calls"].as_array().unwrap().iter().any(|c| c["id"].as_i64() == parent);
        assert_eq!(parent.is_some(), known, "{call}");
        assert_eq!(parent.is_none(), call["depth"] == 0);
    }
    let waits = s.ask("/api/packet?id=2")["handovers"].clone();
    assert!(
        waits
            .as_array()
            .unwrap()
            .iter()
            .any(|h| h["wait"].as_i64() > Some(0) && h["to_call"].is_i64() && h["from_call"].is_i64())
    );
    assert_eq!(s.ask("/api/packet?id=4")["lineage"]["nodes"].as_array().unwrap().len(), 2);

    let spent = s.ask("/api/time");
    let paths: Vec<i64> =
        list["columns"]["path_ns"].as_array().unwrap().iter().filter_map(Value::as_i64).collect();
    assert_eq!((&spent["packets"], &spent["path"]["total"]), (&4.into(), &paths.iter().sum::<i64>().into()));
    assert_eq!(spent["path"]["max"], *paths.iter().max().unwrap());
    let kinds: Vec<&str> =
        spent["parts"].as_array().unwrap().iter().filter_map(|p| p["kind"].as_str()).collect();
    assert!(kinds.contains(&"layer") && kinds.contains(&"wait"), "{kinds:?}");
    // ip_forward is called once, for 49.8 us; what it called is not its own.
    let of = |name: &str| spent["functions"].as_array().unwrap().iter().find(|f| f["name"] == name).cloned();
    let forward = of("ip_forward").unwrap();
    assert_eq!(forward["times"], 1);
    assert!(forward["total"].as_i64().unwrap() < 49_800, "{forward}");
    let of_udp = s.ask("/api/time?where=udp");
    assert_eq!((&of_udp["packets"], &of_udp["path"]["total"]), (&2.into(), &(paths[1] + paths[2]).into()));
    let latency = s.ask("/api/latency?bins=3");
    let sum = |rows: &Value| -> u64 {
        rows.as_array().unwrap().iter().map(|r| r["packets"].as_u64().unwrap()).sum()
    };
    assert_eq!(
        (sum(&latency["histogram"]), &latency["packets"], &latency["pieces"]),
        (4, &4.into(), &3.into())
    );
    for step in latency["histogram"].as_array().unwrap() {
        let within =
            |p: &&i64| (step["from"].as_i64().unwrap()..step["below"].as_i64().unwrap()).contains(*p);
        assert_eq!(paths.iter().filter(within).count() as u64, step["packets"].as_u64().unwrap(), "{step}");
    }
    assert_eq!(latency["points"]["columns"]["path_ns"], list["columns"]["path_ns"]);
    assert_eq!(latency["points"]["columns"]["dropped"], serde_json::json!([false, false, true, false]));
    let in_bins: u64 =
        latency["bins"]["columns"]["packets"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(in_bins, 4);
    let first = &list["columns"]["t"][0];
    assert_eq!(s.ask(&format!("/api/latency?from={first}&to={first}"))["packets"], 1);

    let functions = s.ask("/api/functions");
    let rows = functions["rows"].as_array().unwrap();
    assert!(rows.windows(2).all(|w| w[0]["self"].as_i64() >= w[1]["self"].as_i64()));
    let forward = rows.iter().find(|f| f["name"] == "ip_forward").unwrap();
    assert_eq!((&forward["calls"], &forward["total"]), (&1.into(), &49_800.into()));
    let of_udp = s.ask("/api/functions?where=udp");
    let names: Vec<&str> =
        of_udp["rows"].as_array().unwrap().iter().filter_map(|f| f["name"].as_str()).collect();
    assert!(names.contains(&"udp_queue_rcv_one_skb") && !names.contains(&"ip_forward"), "{names:?}");
    let slow = s.ask("/api/functions?where=udp&slower=800000");
    assert_eq!(slow["rows"].as_array().unwrap().len(), 2, "{slow}");

    let id = &forward["id"];
    let detail = s.ask(&format!("/api/function?id={id}"));
    assert_eq!((&detail["total"], &detail["calls"]["columns"]["packet"][0]), (&1.into(), &1.into()));
    assert_eq!(detail["callers"][0]["name"], "ip_rcv");
    let callees: Vec<&str> =
        detail["callees"].as_array().unwrap().iter().filter_map(|n| n["name"].as_str()).collect();
    assert_eq!(callees, ["ip_finish_output2", "nf_hook_slow"]);

    let flame = s.ask("/api/flame");
    let (depth, parent) = (&flame["nodes"]["columns"]["depth"], &flame["nodes"]["columns"]["parent"]);
    for (i, p) in parent.as_array().unwrap().iter().enumerate() {
        let p = p.as_i64().unwrap();
        assert!(p < i as i64);
        let above = if p < 0 { -1 } else { depth[p as usize].as_i64().unwrap() };
        assert_eq!(depth[i].as_i64(), Some(above + 1));
    }
    let of_one = s.ask("/api/flame?where=packet%20%3D%3D%201");
    assert!(of_one["total"].as_i64() < flame["total"].as_i64());
    assert_eq!(of_one["total"], 61_400);

    let phases = s.ask("/api/phases");
    assert_eq!(phases["packets"], 4);
    let sum: f64 = phases["phases"].as_array().unwrap().iter().filter_map(|p| p["share"].as_f64()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let ways = s.ask("/api/phases/packets?where=udp");
    assert_eq!((&ways["total"], &ways["rows"][0]["id"]), (&2.into(), &2.into()));
    let parts: i64 = ways["rows"][0]["parts"].as_array().unwrap().iter().filter_map(|p| p[1].as_i64()).sum();
    assert_eq!(Some(parts), ways["rows"][0]["path_ns"].as_i64());

    let trust = s.ask("/api/trust");
    assert_eq!(trust["clocks"][0]["bound_ns"], 1_234);
    assert_eq!(trust["residuals"][0]["residual_ns"], serde_json::json!([-12_345]));
    assert!(trust["conservation"]["explained_ppm"].as_u64().is_some());

    let events = s.ask("/api/events");
    assert_eq!(events["total"], 3);
    let drops = s.ask("/api/events?kind=drop");
    assert_eq!((&drops["total"], &drops["rows"][0]["packet"]), (&1.into(), &3.into()));
    assert_eq!(s.ask("/api/events?where=dropped")["total"], 1);

    let compare = s.ask("/api/compare");
    let rows = compare["rows"].as_array().unwrap();
    // One run a side, and the same: every row is there, of packets, layers, waits and functions, and none has a verdict.
    assert!(rows.iter().all(|r| r["by_time_ns"] == 0.0 && r["verdict"] == "not known"), "{compare}");
    let kinds: Vec<&str> = rows.iter().filter_map(|r| r["kind"].as_str()).collect();
    assert!(["path", "layer", "wait", "function"].iter().all(|k| kinds.contains(k)), "{compare}");
    assert!(compare["remarks"][0]["words"].as_str().unwrap().starts_with("one run a side"), "{compare}");
    let complete = s.ask("/api/complete?text=func%20ip_f&at=9");
    assert_eq!((&complete["from"], &complete["items"][0]["text"]), (&5.into(), &"ip_forward".into()));
}

#[test]
fn what_cannot_be_answered_is_said() {
    let (s, _folder) = start("errors");
    let e = s.error(&format!("/api/packets?where={}", coded("'ü🦀' port htp")));
    assert_eq!(e["at"], serde_json::json!({ "from": 11, "to": 14 }), "{e}");
    for target in
        ["/api/functions", "/api/flame", "/api/phases", "/api/events", "/api/check", "/api/overview"]
    {
        assert!(s.error(&format!("{target}?where=%28"))["at"].is_object(), "{target}");
    }
    for (target, words) in [
        ("/api/packet?id=99", "no packet 99"),
        ("/api/packet", "needs id="),
        ("/api/packet?id=x", "not a number"),
        ("/api/packets?sort=nothing", "no column"),
        ("/api/packets?count=-1", "not a number"),
        ("/api/functions?sort=nothing", "no column"),
        ("/api/function?id=65000", "no function"),
        ("/api/function?id=1&from=1000000", "narrow"),
        ("/api/events?kind=nothing", "no kind"),
        ("/api/overview?from=5&to=1", "ends before"),
    ] {
        let e = s.error(target);
        assert!(e["words"].as_str().unwrap().contains(words), "{target}: {e}");
    }
    let token = format!("X-Kpat-Token: {}\r\n", s.token);
    assert_eq!(s.get("/api/nothing", &token).0, 404);
    assert_eq!(s.get("/api/info?device=other", &token).0, 404);
}

/// Of a damaged log: losses that end before they begin, and whose ends lie beyond all that was recorded.
#[test]
fn losses_backwards_end_no_answer() {
    use kpat_store::tables::LossRow;
    let folder = Folder::new("server-backwards");
    let log = integrated(&folder);
    let path = log.join("loss.parquet");
    let mut rows: Vec<LossRow> =
        kpat_store::TableFile::open(&log, &kpat_store::tables::LOSS).unwrap().all().unwrap();
    let odd = [(i64::MIN, i64::MAX), (START + 90_000, START + 1_000), (i64::MAX, i64::MIN)];
    rows.extend(odd.map(|(from_ns, to_ns)| LossRow { from_ns, to_ns, count: 1, ..LossRow::default() }));
    std::fs::remove_file(path).unwrap();
    let mut w = kpat_store::TableWriter::create(&log).unwrap();
    rows.iter().for_each(|r| w.push(r).unwrap());
    w.finish().unwrap();
    let s = serve(&log, None);
    let lost = s.ask("/api/overview?bins=4")["bins"]["lost"].clone();
    assert_eq!(lost, serde_json::json!([true, true, true, true]));
}

#[test]
fn who_may_not_ask_learns_nothing() {
    let (s, _folder) = start("guard");
    let (port, token) = (s.port, &s.token);
    let named = format!("X-Kpat-Token: {token}\r\n");
    assert_eq!(s.get("/api/info", "").0, 403);
    assert_eq!(s.get("/api/info", "X-Kpat-Token: 00000000000000000000000000000000\r\n").0, 403);
    assert_eq!(s.get(&format!("/api/info?token={token}"), "").0, 403, "only in a header");
    assert_eq!(s.get("/api/info", &format!("{named}Origin: http://{}\r\n", "evil.example")).0, 403);
    assert_eq!(s.get("/api/info", &format!("{named}Sec-Fetch-Site: cross-site\r\n")).0, 403);
    let wrong =
        format!("GET /api/info HTTP/1.1\r\nHost: evil.example:{port}\r\n{named}Connection: close\r\n\r\n");
    assert_eq!(send(port, &wrong).0, 421);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
        let request = format!(
            "{method} /api/info HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{named}Connection: close\r\n\r\n"
        );
        let (status, head, body) = send(port, &request);
        assert_eq!(status, 405, "{method}");
        assert!(!head.to_lowercase().contains("access-control") && !body.contains("router"), "{head}");
    }
    let body =
        format!("GET /api/info HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{named}Content-Length: 4\r\n\r\nabcd");
    assert_eq!(send(port, &body).0, 400);
    for path in [
        "/../Cargo.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/index.html/../../etc/passwd",
        "/etc/passwd",
    ] {
        assert_eq!(s.get(path, "").0, 404, "{path}");
    }
    let (status, head, _) = s.get("/", "");
    assert_eq!(status, 200);
    for header in
        ["default-src 'none'", "frame-ancestors 'none'", "X-Content-Type-Options: nosniff", "no-referrer"]
    {
        assert!(head.contains(header), "{header} in {head}");
    }
    assert!(!head.contains("unsafe"));
    // A head that never ends.
    let long = format!("GET / HTTP/1.1\r\nHost: {}", "x".repeat(40_000));
    assert_eq!(send(port, &long).0, 431);
}

#[test]
fn news_are_told_and_the_log_may_be_another() {
    let (s, _folder) = start("news");
    let mut stream = TcpStream::connect(("127.0.0.1", s.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request =
        format!("GET /api/changes?token={} HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", s.token, s.port);
    stream.write_all(request.as_bytes()).unwrap();
    let mut heard = String::new();
    let mut until = |text: &str| {
        let mut some = [0; 512];
        while !heard.contains(text) {
            let n = stream.read(&mut some).unwrap();
            assert!(n > 0, "ended after {heard}");
            heard.push_str(std::str::from_utf8(&some[..n]).unwrap());
        }
        heard.clear();
    };
    until("\"generation\":");
    let folder = Folder::new("server-news-2");
    let before = s.ask("/api/info")["generation"].as_u64().unwrap();
    s.service.replace(&integrated(&folder)).unwrap();
    until("\"generation\":");
    assert!(s.ask("/api/info")["generation"].as_u64().unwrap() > before);
    assert_eq!(s.ask("/api/packets")["total"], 4);
}

/// A connection carries many questions, and one that is left frees its thread.
#[test]
fn connections_stay_and_may_be_left() {
    let (s, _folder) = start("stay");
    let mut stream = TcpStream::connect(("127.0.0.1", s.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let one =
        format!("GET /api/check HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nX-Kpat-Token: {}\r\n\r\n", s.port, s.token);
    stream.write_all(one.repeat(3).as_bytes()).unwrap();
    let mut heard = String::new();
    let mut some = [0; 4096];
    while heard.matches("{\"result\"").count() < 3 {
        let n = stream.read(&mut some).unwrap();
        assert!(n > 0);
        heard.push_str(std::str::from_utf8(&some[..n]).unwrap());
    }
    drop(stream);
    // More than may be open at a time, one after the other.
    let begun = Instant::now();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(("127.0.0.1", s.port)).unwrap();
        stream.write_all(one.as_bytes()).unwrap();
        drop(stream);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(s.ask("/api/packets")["total"], 4);
    assert!(begun.elapsed() < Duration::from_secs(20));
}
