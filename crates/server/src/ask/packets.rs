//! Lists of packets, and their density over time.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::packets::{Bins, Overview, PacketAt, PacketRow, Packets};
use crate::answers::{Columns, Ns};
use kpat_query::catalog::{Catalog, Column, Entry, bin, flag};
use kpat_query::verdict;

/// Whose thread it is, as far as the log knows.
pub fn process_of(ask: &Ask<'_>, pid: i32, at_ns: i64) -> Option<i32> {
    ask.log.store.process(pid, at_ns).map(|p| p.tgid)
}

pub fn row(ask: &Ask<'_>, catalog: &Catalog, e: &Entry) -> PacketRow {
    let names = &catalog.names;
    let owned = |s: Option<&str>| s.map(str::to_owned);
    PacketRow {
        id: e.is_packet().then_some(e.id),
        frame: names.frame_of(e),
        frame_id: (e.frame > 0).then(|| format!("{}.{}", e.capture, e.frame)),
        t: Ns(e.first_ns.saturating_sub(names.start_ns)),
        src: e.src_text(names),
        dst: e.dst_text(names),
        proto: e.proto_text(names),
        len: e.len_bytes,
        info: e.info_text(names),
        path_ns: Ns(e.path_ns),
        kernel_ns: Ns(e.kernel_ns),
        frames: e.frames,
        calls: e.calls,
        points: e.points,
        verdict: if e.is_packet() { verdict::name(i32::from(e.verdict)).to_owned() } else { String::new() },
        drop: owned(names.drop_of(e)),
        process: owned(names.process_of(e)),
        pid: e.has(flag::PID).then_some(e.pid),
        tgid: e.has(flag::PID).then(|| process_of(ask, e.pid, e.first_ns)).flatten(),
        confidence: e.has(flag::CONFIDENCE).then_some(e.confidence),
        ambiguous: e.is_ambiguous(),
        retransmission: e.has(flag::RETRANSMITTED),
        if_in: owned(names.device_name(e.if_in)),
        if_out: owned(names.device_name(e.if_out)),
        netns: e.has(flag::NETNS).then_some(e.netns),
        cpu: e.has(flag::CPU).then_some(e.cpu),
    }
}

fn order(ask: &Ask<'_>) -> Answer<(Option<Column>, bool)> {
    let descending = ask.flag("desc");
    let column = match ask.request.get("sort").filter(|s| !s.is_empty()) {
        None => None,
        Some(name) => Some(
            Column::from_name(name).map_err(|_| Failure::words(format!("no column `{name}` to sort by")))?,
        ),
    };
    let column = column.filter(|c| *c != Column::Time);
    Ok((if descending { column.or(Some(Column::Time)) } else { column }, descending))
}

pub fn packets(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Packets> {
    let (from, count) = ask.page()?;
    let order = order(ask)?;
    let plain = ask.filter()?.is_none() && order == (None, false);
    ask.service.load(ask.log);
    // While the list is read, its beginning is there at once. Of the last half later row groups may still come before.
    if plain && ask.log.loaded().is_none() {
        let first = ask.log.beginning()?;
        if from + count <= first.entries.len() / 2 {
            let counts = |table: &str| super::info::rows(ask.log, table);
            let all = counts("packet");
            let page = first.entries[from..from + count].iter().map(|e| row(ask, &first, e)).collect();
            return Ok(Packets { page: Columns(page), total: all, all, from: from as u64, partial: true });
        }
    }
    let catalog = ask.catalog(progress)?;
    let places = ask.places(&catalog, order, progress)?;
    let page =
        places.iter().skip(from).take(count).map(|&i| row(ask, &catalog, &catalog.entries[i as usize]));
    Ok(Packets {
        page: Columns(page.collect()),
        total: places.len() as u64,
        all: catalog.entries.len() as u64,
        from: from as u64,
        partial: false,
    })
}

pub fn at(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<PacketAt> {
    let order = order(ask)?;
    let frame = ask.frame()?;
    let id: i64 = if frame.is_some() { -1 } else { ask.needed("id")? };
    let catalog = ask.catalog(progress)?;
    let places = ask.places(&catalog, order, progress)?;
    let found = match frame {
        Some((capture, number)) => match (u16::try_from(capture), u32::try_from(number)) {
            (Ok(capture), Ok(number)) => catalog.place_of_frame(capture, number),
            _ => None,
        },
        None => catalog.place(id),
    };
    let Some(place) = found else { return Ok(PacketAt { index: None }) };
    let place = place as u32;
    let index = if order.0.is_none() {
        places.binary_search(&place).ok()
    } else {
        places.iter().position(|p| *p == place)
    };
    Ok(PacketAt { index: index.map(|i| i as u64) })
}

pub fn overview(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Overview> {
    let bins = ask.number::<usize>("bins")?.unwrap_or(200).clamp(1, 4_000);
    let start = ask.log.start_ns();
    let (from, to) = ask.stretch()?;
    let catalog = ask.catalog(progress)?;
    let places = ask.places(&catalog, (None, false), progress)?;
    let density = catalog.density(&places, from, to, bins);
    let mut lost = vec![false; bins];
    for l in ask.log.info.losses.iter().filter(|l| l.from_ns <= to && l.to_ns >= from) {
        let first = bin(l.from_ns.max(from), from, to, bins).unwrap_or(0);
        let last = bin(l.to_ns.min(to), from, to, bins).unwrap_or(bins - 1);
        // Backwards in a damaged table.
        if let Some(bins) = lost.get_mut(first..=last) {
            bins.fill(true);
        }
    }
    Ok(Overview {
        from: Ns(from - start),
        to: Ns(to - start),
        bins: Bins {
            packets: density.packets,
            drops: density.drops,
            retransmissions: density.retransmissions,
            lost,
        },
    })
}
