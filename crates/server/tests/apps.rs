//! Questions about applications, over a log whose sockets are known.

use crate::asking;
use crate::fixture;
use crate::sockets;

use asking::serve;
use serde_json::{Value, json};

#[test]
fn sockets_in_sum_one_by_one_and_over_time() {
    let log = sockets::log("served", &sockets::sockets(), &sockets::events(), &sockets::states());
    let s = serve(&log.0, None);
    assert_eq!(s.ask("/api/info")["counts"]["sockets"], 2);

    let apps = s.ask("/api/apps");
    assert_eq!((&apps["total"], &apps["lost"]), (&json!(2), &json!(11)));
    let first = &apps["sockets"][0];
    assert_eq!(first["id"], "1");
    assert_eq!((&first["local"], &first["peer"]), (&json!("10.0.0.1:40001"), &json!("10.0.0.2:80")));
    assert_eq!(
        (&first["written"], &first["writes"], &first["failed"]),
        (&json!(12_000), &json!(10), &json!(2))
    );
    assert_eq!(
        (&first["packets"], &first["frames"], &first["retransmitted"]),
        (&json!(8), &json!(16), &json!(2))
    );
    assert_eq!(first["held"], json!(["congestion window", 500.0 / 910.0]));
    // Names are data of strangers: they stay what they are, in a string.
    assert_eq!(first["process"], "<b>writer\u{1b}[31m");

    let one = s.ask("/api/app?socket=1");
    let layer = |name: &str| {
        let all = one["layers"].as_array().unwrap().iter();
        all.into_iter().find(|l| l["crossing"] == name).cloned().unwrap()
    };
    assert_eq!((&layer("send")["bytes"], &layer("send")["failed"]), (&json!(12_000), &json!(2)));
    assert_eq!(layer("to-device")["sizes"], json!([[1024, 8]]));
    assert_eq!(one["limits"]["held"][1], json!(["congestion window", 500]));

    let series = s.ask("/api/app/series?socket=1&bins=10");
    assert_eq!((&series["from"], &series["to"], &series["bins"]), (&json!(0), &json!(1000), &json!(10)));
    let named = |list: &str, key: &str, name: &str| -> Value {
        let of = series.pointer(list).unwrap().as_array().unwrap().iter();
        of.into_iter().find(|x| x[key] == name).cloned().unwrap()
    };
    assert_eq!(named("/crossings", "crossing", "send")["bytes"][4], 0);
    assert_eq!(named("/marks", "mark", "failed call")["counts"], json!([0, 0, 0, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(
        named("/tcp/tracks", "metric", "ssthresh")["low"],
        json!([null, null, null, 20, 20, 20, 20, 20, 20, 20])
    );
    assert_eq!(
        series["gaps"],
        json!([{"from": 500, "to": 530, "lost": 10}, {"from": 900, "to": 900, "lost": 1}])
    );
    let piece = s.ask("/api/app/series?socket=1&from=410&to=590&bins=3");
    assert_eq!((&piece["from"], &piece["to"]), (&json!(410), &json!(590)));
    assert!(s.ask("/api/app/series")["tcp"].is_null());

    assert!(s.error("/api/app?socket=9")["words"].as_str().unwrap().contains("no socket 9"));
    assert!(s.error("/api/app/series?socket=9")["words"].as_str().unwrap().contains("no socket 9"));
    assert!(s.error("/api/app")["words"].as_str().unwrap().contains("socket="));
    assert!(s.error("/api/app/series?bins=x")["words"].as_str().unwrap().contains("bins=x"));
}

#[test]
fn a_log_without_sockets_has_none() {
    let folder = fixture::Folder::new("server-no-sockets");
    let s = serve(&fixture::integrated(&folder), None);
    assert_eq!(s.ask("/api/info")["counts"]["sockets"], 0);
    assert_eq!(s.ask("/api/apps"), json!({"total": 0, "lost": 0, "sockets": []}));
    assert!(s.error("/api/app/series")["words"].as_str().unwrap().contains("no sockets"));
}
