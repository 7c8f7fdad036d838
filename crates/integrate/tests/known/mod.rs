//! What the made-up world's logs do not say of themselves and an integrated log may: layers, tracepoints, what probing
//! cost. Written into the tables and the manifest after integrating.

#![allow(dead_code, clippy::unwrap_used, reason = "each user needs a part; a test may panic")]

use crate::world::{At, Dir, LogWriter};
use kpat_integrate::{Options, integrate};
use kpat_model::meta::Cost;
use kpat_model::*;
use kpat_query::Store;
use kpat_store::tables::{FUNCTION, FunctionRow};
use kpat_store::{Manifest, TableFile, TableWriter};

/// A passing of a tracepoint.
pub fn point(log: &mut LogWriter, at: At, name: &str, when: i64) {
    let point = Point {
        func: log.func(name),
        ctx: at.ctx,
        skb_tag: 1,
        pid: at.pid,
        packet: PacketId(at.packet),
        at: BootNs(when),
        len_bytes: 84,
        ends: false,
        put_off: false,
    };
    log.push(at.cpu, Record::Point(point));
}

/// Integrates `NAME.kbl` of a folder, and says the layer of each function, and the cost.
pub fn open(dir: &Dir, name: &str, layer: &dyn Fn(&str) -> &'static str, cost: Cost) -> Store {
    let out = dir.path(&format!("{name}.kpat"));
    integrate(&dir.path(&format!("{name}.kbl")), &[], &out, &Options::default(), &mut |_| ()).unwrap();
    say(dir, name, layer, cost)
}

/// As [`open`], of what is integrated already.
pub fn say(dir: &Dir, name: &str, layer: &dyn Fn(&str) -> &'static str, cost: Cost) -> Store {
    let out = dir.path(&format!("{name}.kpat"));
    let mut rows: Vec<FunctionRow> = TableFile::open(&out, &FUNCTION).unwrap().all().unwrap();
    for f in &mut rows {
        f.layer = layer(&f.name).to_owned();
        f.kind = if f.name.contains(':') { "tracepoint" } else { "function" }.to_owned();
    }
    let mut writer = TableWriter::<FunctionRow>::create(&out).unwrap();
    rows.iter().for_each(|f| writer.push(f).unwrap());
    writer.finish().unwrap();
    let mut manifest = Manifest::read(&out).unwrap();
    manifest.log.kernel_release = "6.12.1".to_owned();
    manifest.summary.as_mut().unwrap().cost = cost;
    manifest.write(&out).unwrap();
    Store::open(&out).unwrap()
}
