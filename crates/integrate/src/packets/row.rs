//! The row of a packet that is over.

use super::super::arrivals::{Arrival, Arrivals};
use super::super::flatten;
use super::super::stamps::Stamp;
use super::prints::Print;
use super::{Live, NEVER};
use kpat_model::codes::verdict;
use kpat_model::hash::Set;
use kpat_model::{Context, Network, Transport};
use kpat_query::roles::TAP;
use kpat_store::tables::PacketRow;

impl Live {
    /// What was done for it before it was first seen, if a device received it in the poll that is meant.
    pub(super) fn before(&self, arrivals: &Arrivals, row: &mut PacketRow) {
        // A copy shares the stamp of what it was copied from, and a sender's packet may bear one of its way out.
        let by_it = |&(_, netns, ifindex): &Stamp| {
            row.if_in == Some(ifindex as i32) && row.if_in_netns.unwrap_or(0) == i64::from(netns)
        };
        row.stamp_ns = self.stamp.filter(|_| !self.way.received_by_parent).filter(by_it).map(|s| s.0);
        let (at, cpu, ctx) = self.counted.cpu;
        let own = |a: &&Arrival| a.cpu == cpu && ctx == Context::Softirq && at != i64::MAX;
        let Some(a) = self.arrival.as_ref().filter(own).filter(|_| row.if_in.is_some()) else { return };
        if !self.way.received_by_parent && a.from <= self.first && arrivals.holds(a, self.first) {
            row.driver_ns = Some(self.first - a.from);
            row.softirq_ns = a.raised.filter(|r| *r <= a.from).map(|r| a.from - r);
        }
    }

    /// `of_programs`: as [`super::Terms::of_programs`].
    pub(super) fn row(
        &self,
        packet: u64,
        code: i32,
        sniffers: &[u32],
        of_programs: &Set<(u32, u32)>,
    ) -> PacketRow {
        let received = self.way.was_received();
        let device = |p: &Print| (p.ifindex != 0).then_some(p.ifindex as i32);
        let netns = |p: &Print| (p.netns != 0).then_some(i64::from(p.netns));
        let from = self.way.received_from();
        let mut by = self.headers.all.iter().filter(|p| p.ifindex != 0);
        let in_by = if received { by.clone().find(|p| p.at >= from).or_else(|| by.next()) } else { None };
        let out_by = self.out_by();
        let reader = if code == verdict::DELIVERED {
            self.taken.reader(self.way.roles & TAP != 0, sniffers)
        } else {
            None
        };
        let sent_by_thread = !received || in_by.is_some_and(|p| of_programs.contains(&(p.netns, p.ifindex)));
        let pid = reader.unwrap_or(if sent_by_thread { self.counted.sender() } else { 0 });
        let mut row = PacketRow {
            packet_id: packet as i64,
            first_ns: self.first,
            last_ns: self.last,
            path_ns: self.path_end(code == verdict::DELIVERED, reader.is_some()).saturating_sub(self.first),
            kernel_ns: self.counted.kernel_ns,
            len_bytes: i64::from(self.counted.len_bytes),
            calls: self.counted.calls as i32,
            points: self.counted.points as i32,
            verdict: code,
            drop_reason: self.own_drop().filter(|_| code == verdict::DROPPED).and_then(|d| d.code),
            pid: (pid != 0).then_some(pid as i32),
            netns: self.headers.all.iter().find_map(netns),
            if_in: in_by.and_then(device),
            if_out: out_by.and_then(device),
            if_in_netns: in_by.and_then(netns),
            if_out_netns: out_by.and_then(netns),
            cpu: (self.counted.cpu.0 != i64::MAX).then_some(i32::from(self.counted.cpu.1)),
            end_ns: (self.fate.free_at != NEVER).then_some(self.fate.free_at),
            ..PacketRow::default()
        };
        if let Some(f) = &self.headers.shown {
            row.ethertype = flatten::ethertype(f);
            row.proto = flatten::ip_proto(f);
            (row.src_addr, row.dst_addr) = flatten::addresses(f);
            if let Some(Network::Arp { op, .. }) = &f.network {
                row.arp_op = Some(i32::from(*op));
            }
            (row.tcp_tsval, row.tcp_tsecr) = flatten::stamps(f);
            row.message = f.message.as_ref().map(|m| m.text.to_string());
            match &f.transport {
                Some(Transport::Tcp { sport, dport, seq, flags, .. }) => {
                    row.sport = Some(i32::from(*sport));
                    row.dport = Some(i32::from(*dport));
                    row.tcp_seq = Some(i64::from(*seq));
                    row.tcp_flags = Some(i32::from(*flags));
                }
                Some(Transport::Udp { sport, dport, .. }) => {
                    row.sport = Some(i32::from(*sport));
                    row.dport = Some(i32::from(*dport));
                }
                Some(
                    Transport::Icmp { kind, code, id, seq, .. }
                    | Transport::Icmpv6 { kind, code, id, seq, .. },
                ) => {
                    row.icmp_kind = Some(i32::from(*kind));
                    row.icmp_code = Some(i32::from(*code));
                    row.icmp_id = Some(i32::from(*id));
                    row.icmp_seq = Some(i32::from(*seq));
                }
                Some(Transport::Other { .. }) | None => {}
            }
        }
        row
    }
}
