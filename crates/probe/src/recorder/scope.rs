//! What a recording is of: which namespaces and interfaces are watched, and what the log says of itself.

use super::{Error, Options};
use crate::plan::{self, Decision, Tracepoint};
use crate::{kernel, netlink, sys};
use kpat_model::meta;

/// Namespaces whose interfaces and routes are watched: those asked for, else this one and all that have a name.
pub(super) fn watched(options: &Options) -> Vec<netlink::NetnsRef> {
    if !options.netns.is_empty() {
        return options.netns.clone();
    }
    let mut all: Vec<netlink::NetnsRef> = netlink::current_netns().into_iter().collect();
    for n in netlink::named_netns() {
        if !all.iter().any(|m| m.inum == n.inum) {
            all.push(n);
        }
    }
    all
}

pub(super) fn devices(watched: &[netlink::NetnsRef]) -> Result<Vec<meta::Device>, netlink::Error> {
    let mut out = Vec::new();
    for n in watched {
        out.extend(netlink::devices(n)?);
    }
    Ok(out)
}

pub(super) fn interface_ids(options: &Options, devices: &[meta::Device]) -> Result<Vec<u32>, Error> {
    let mut out = Vec::new();
    for name in &options.interfaces {
        let ids: Vec<u32> = devices.iter().filter(|d| d.name == *name).map(|d| d.ifindex).collect();
        if ids.is_empty() {
            return Err(Error::NoInterface(name.clone()));
        }
        out.extend(ids);
    }
    Ok(out)
}

pub(super) fn describe(
    options: &Options,
    d: &Decision,
    tracepoints: &[Tracepoint],
    ring_bytes: usize,
    cpus: usize,
) -> meta::Meta {
    let started = sys::clock_anchor();
    let part = meta::Part {
        recording: kernel::read_line("/proc/sys/kernel/random/uuid"),
        number: options.rotate.is_some().into(),
        began: started,
        records_before: 0,
    };
    meta::Meta {
        writer: concat!("kpat ", env!("CARGO_PKG_VERSION")).into(),
        hostname: kernel::read_line("/proc/sys/kernel/hostname"),
        kernel_release: kernel::read_line("/proc/sys/kernel/osrelease"),
        kernel_version: kernel::read_line("/proc/sys/kernel/version"),
        arch: std::env::consts::ARCH.into(),
        endian: if cfg!(target_endian = "little") { "little" } else { "big" }.into(),
        boot_id: kernel::read_line("/proc/sys/kernel/random/boot_id"),
        cpus: cpus as u32,
        mechanism: d.mechanism.name().into(),
        passed_over: d.passed_over.clone(),
        build: d.build.name().into(),
        build_passed_over: d.build_passed_over.clone(),
        profile: options.selection.profile.clone(),
        filter: options.filter.clone(),
        netns: options.netns.iter().map(|n| n.inum).collect(),
        command: options.words.clone(),
        ring_bytes_per_cpu: ring_bytes as u64,
        functions: plan::function_table(d, tracepoints),
        left_out: d
            .left_out
            .iter()
            .map(|(name, reason)| meta::LeftOut { name: name.clone(), reason: reason.clone() })
            .collect(),
        hz: kernel::config().get("HZ").and_then(|v| v.parse().ok()).unwrap_or(0),
        drop_reasons: d.drop_reasons.clone(),
        pauses: tracepoints.iter().any(|t| t.name == "sched_switch")
            && !d.left_out.iter().any(|(name, _)| name == "tracepoint sched_switch"),
        started,
        part,
    }
}
