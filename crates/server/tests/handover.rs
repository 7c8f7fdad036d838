//! Questions about handovers, over a log in which a wired link goes down and comes up.

use crate::asking;
use crate::fixture::{self, Folder, START};

use asking::serve;
use kpat_model::LinkWhat;
use kpat_store::TableWriter;
use kpat_store::tables::{LINK_EVENT, LinkEventRow};
use serde_json::json;

#[test]
fn a_link_flap_in_sum_and_phase_by_phase() {
    let folder = Folder::new("served-handover");
    let dir = fixture::integrated(&folder);
    std::fs::remove_file(dir.join(LINK_EVENT.file_name())).unwrap();
    let mut table = TableWriter::<LinkEventRow>::create(&dir).unwrap();
    for (ms, what) in [(100, LinkWhat::CarrierOff), (2_600, LinkWhat::CarrierOn)] {
        let row = LinkEventRow {
            at_ns: START + ms * 1_000_000,
            event: what as i32,
            function: 1,
            netns: Some(4_294_967_031),
            ifindex: 3,
            ..LinkEventRow::default()
        };
        table.push(&row).unwrap();
    }
    table.finish().unwrap();

    let s = serve(&dir, None);
    let all = s.ask("/api/handovers");
    assert_eq!((&all["none"], &all["left_out"]), (&json!(null), &json!(0)));
    let line = &all["rows"][0];
    assert_eq!(
        (&line["number"], &line["interface"], &line["kind"]),
        (&json!(1), &json!("wan"), &json!("link flap"))
    );
    assert_eq!(line["link"], 2_500_000_000_i64);
    assert_eq!(all["together"], "1 handover together");
    assert_eq!((&all["sums"][0]["label"], &all["sums"][0]["handovers"]), (&json!("link down"), &json!(1)));

    let one = s.ask("/api/handover?number=1");
    let phase = &one["phases"][0];
    assert_eq!((&phase["phase"], &phase["evidence"]), (&json!("link-down"), &json!("link event 0")));
    assert_eq!(phase["to"].as_i64().unwrap() - phase["from"].as_i64().unwrap(), 2_500_000_000);
    assert_eq!(one["line"], *line);
    assert_eq!(one["lanes"][0]["marks"][0]["words"], "carrier off");
    assert!(one["gap"].is_null());
}
