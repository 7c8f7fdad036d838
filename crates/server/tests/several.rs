//! A log of several devices: each is asked by its name, and a packet says where it came from and went on to.

use crate::asking;
use crate::world;

use asking::serve;
use kpat_integrate::Options;
use kpat_integrate::devices::integrate_devices;
use kpat_model::meta::ClockAnchor;
use kpat_model::*;
use world::*;

const SEC: i64 = 1_000_000_000;
const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

#[test]
fn a_packet_is_followed_to_the_other_device() {
    let dir = Dir::new("server-several");
    let boot = [Clock { offset: 500 * SEC, drift: 0.0 }, Clock { offset: 40 * SEC, drift: 0.0 }];
    let sniffer = Clock { offset: 1_700_000_000 * SEC, drift: 0.0 };
    let mut logs: Vec<LogWriter> = (0..2)
        .map(|d| {
            let anchor =
                ClockAnchor { boot: BootNs(boot[d].wall(SEC)), wall: WallNs(SEC), uncertainty_ns: 1_000 };
            let functions = ["napi_gro_receive", "dev_hard_start_xmit"];
            let path = dir.path(["near.kbl", "far.kbl"][d]);
            LogWriter::create(&path, &functions, &[(2, "eth0", MACS[d])], anchor)
        })
        .collect();
    let mut capture = Capture::new(&dir.path("wire.pcapng"), &[""]);
    for n in 0..200i64 {
        let from = (n % 2) as usize;
        let left = SEC + n * 1_000_000;
        let (src, dst) = ([10, 0, 0, 1 + from as u8], [10, 0, 0, 2 - from as u8]);
        let packet = ipv4(src, dst, n as u16 + 1, 17, 64, 108, &udp(4_000, 53, 100));
        let header = ether(MACS[1 - from], MACS[from], 0x800, &packet);
        let at = |device: usize, ctx| At {
            cpu: 0,
            ctx,
            pid: 0,
            packet: (1 + n) as u64 + if device == 0 { 0 } else { 1_000 },
        };
        let (out, t) = (at(from, Context::Task), boot[from].wall(left));
        logs[from].print(out, t - 2_000, 2, &header, 142, (0, 0));
        logs[from].call(out, "dev_hard_start_xmit", t, t + 2_000);
        logs[from].free(out, t + 3_000);
        let (came, t) = (at(1 - from, Context::Softirq), boot[1 - from].wall(left + 30_000));
        logs[1 - from].print(came, t, 2, &header, 142, (0, 0));
        logs[1 - from].call(came, "napi_gro_receive", t, t + 2_000);
        logs[1 - from].free(came, t + 3_000);
        capture.frame(sniffer.wall(left + 9_000), 0, header, 142, 0);
    }
    logs.into_iter().for_each(LogWriter::close);
    capture.close();
    let out = dir.path("x.kpat");
    let logs = [dir.path("near.kbl"), dir.path("far.kbl")];
    integrate_devices(&logs, &[dir.path("wire.pcapng")], &out, &Options::default(), &mut |_, _| ()).unwrap();

    let s = serve(&out, None);
    let info = s.ask("/api/info");
    assert_eq!(info["device_names"], serde_json::json!(["near", "far"]));
    assert_eq!(info["device"], "near");
    let far = s.ask("/api/packets?device=far&where=func%20dev_hard_start_xmit");
    assert_eq!(far["total"], 100);
    let sent = far["columns"]["id"][0].as_i64().unwrap();
    let packet = s.ask(&format!("/api/packet?device=far&id={sent}"));
    let crossing = &packet["crossings"][0];
    assert_eq!((&crossing["device"], &crossing["direction"]), (&"near".into(), &"to".into()));
    assert_eq!(crossing["packet"].as_i64(), Some(sent - 1_000));
    let off = crossing["flight_ns"].as_i64().unwrap() - 30_000;
    assert!(off.abs() <= crossing["bound_ns"].as_i64().unwrap(), "{crossing}");
    let came = s.ask(&format!("/api/packet?device=near&id={}", sent - 1_000));
    assert_eq!(
        (&came["crossings"][0]["direction"], &came["crossings"][0]["packet"]),
        (&"from".into(), &sent.into())
    );
}
