//! What a recording is of: which namespaces and interfaces are watched, and what the log says of itself.

use super::disk::may_write;
use super::source::Source;
use super::{Error, Options};
use crate::profile::{APPLICATIONS, Detail, PROGRAMS, WIFI, WORK};
use crate::{filter, kernel, netlink, plan, sys};
use kpat_model::{BootNs, meta};

/// Namespaces whose interfaces and routes are watched: those asked for, else this one, all that have a name, and those that
/// processes are in.
pub(super) fn watched(options: &Options) -> Vec<netlink::NetnsRef> {
    let mut all = named(options);
    if options.netns.is_empty() {
        all.extend(netlink::process_netns());
    }
    all
}

/// Those of them that keep what they are called, whoever is in them.
pub(super) fn named(options: &Options) -> Vec<netlink::NetnsRef> {
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

/// Their devices. A namespace that was not asked for and cannot be read is passed over: the monitor counts it.
pub(super) fn devices(
    options: &Options,
    watched: &[netlink::NetnsRef],
) -> Result<Vec<meta::Device>, netlink::Error> {
    let mut out = Vec::new();
    for n in watched {
        match netlink::devices(n) {
            Ok(found) => out.extend(found),
            Err(e) if !options.netns.is_empty() => return Err(e),
            Err(_) => {}
        }
    }
    Ok(out)
}

/// Adds a device to those of a log. What it replaces is found by its namespace and index. A namespace that has another name all at once is
/// named as either: its end was not seen.
pub(super) fn learn(known: &mut Vec<meta::Device>, mut d: meta::Device) -> Option<meta::Device> {
    const OR: &str = " or ";
    let of = (d.netns, d.netns_since);
    let other = known.iter().rev().find(|k| (k.netns, k.netns_since) == of && !k.netns_name.is_empty());
    if let Some(name) = other.map(|k| &k.netns_name).filter(|n| n.split(OR).last() != Some(&d.netns_name)) {
        d.netns_name = [name.split(OR).next().unwrap_or_default(), &d.netns_name].join(OR);
    } else if let Some(name) = other.map(|k| k.netns_name.clone()) {
        d.netns_name = name;
    }
    let same = known.iter_mut().find(|k| (k.netns, k.netns_since, k.ifindex) == (of.0, of.1, d.ifindex));
    // Asked when the recording began; an announcement does not say it.
    d.phc = d.phc.or(same.as_ref().filter(|k| k.name == d.name).and_then(|k| k.phc));
    match same {
        Some(k) if *k == d => return None,
        Some(k) => *k = d.clone(),
        None => known.push(d.clone()),
    }
    Some(d)
}

/// A namespace, by its number and since when it has that, is called otherwise. Returns the devices that this is true of.
pub(super) fn rename(
    known: &mut [meta::Device],
    of: (u32, Option<BootNs>),
    was: &str,
    name: &str,
) -> Vec<meta::Device> {
    let is = |d: &&mut meta::Device| (d.netns, d.netns_since) == of;
    let mut out = Vec::new();
    for d in known.iter_mut().filter(is) {
        if let Some(before) = d.netns_name.strip_suffix(was) {
            d.netns_name = [before, name].concat();
            out.push(d.clone());
        }
    }
    out
}

pub(super) fn interface_ids(options: &Options, devices: &[meta::Device]) -> Result<Vec<u32>, Error> {
    let mut out = Vec::new();
    for name in &options.interfaces {
        let ids: Vec<u32> = devices.iter().filter(|d| d.name == *name).map(|d| d.ifindex).collect();
        if ids.is_empty() {
            let mut there: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
            there.sort_unstable();
            there.dedup();
            return Err(Error::NoInterface { name: name.clone(), there: there.join(", ") });
        }
        out.extend(ids);
    }
    Ok(out)
}

/// What is wrong with the options whatever the kernel offers, known in milliseconds: before anything is reported or loaded.
pub fn check(options: &Options) -> Result<(), Error> {
    if options.rotate.is_none() {
        may_write(&options.output, options.replace)?;
    }
    filter::compile(&options.filter)?;
    if !options.interfaces.is_empty() {
        interface_ids(options, &devices(options, &watched(options))?)?;
    }
    Ok(())
}

/// What the log says of the recording. Mechanism and builds are those of its first source; `sources` has all.
pub(super) fn describe(options: &Options, sources: &[Source], cpus: usize) -> meta::Meta {
    let d = &sources[0].decision;
    let profiles = options.selection.iter().map(|s| s.profile.as_str());
    let profiles = profiles.chain(options.application.iter().map(|_| APPLICATIONS));
    let profiles = profiles.chain(options.work.then_some(WORK));
    let profiles = profiles.chain(options.programs.iter().map(|_| PROGRAMS));
    let profiles: Vec<&str> = profiles.chain(options.wifi.then_some(WIFI)).collect();
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
        guest_boot_id: String::new(),
        cpus: cpus as u32,
        mechanism: d.mechanism.name().into(),
        passed_over: d.passed_over.clone(),
        build: d.build.name().into(),
        build_passed_over: d.build_passed_over.clone(),
        profile: profiles.join(","),
        sources: sources.iter().map(Source::describe).collect(),
        detail: d.detail.map_or("", Detail::name).into(),
        filter: options.filter.clone(),
        sample: options.sample,
        only: if options.by_process() {
            options.only.iter().map(ToString::to_string).collect()
        } else {
            Vec::new()
        },
        netns: options.netns.iter().map(|n| n.inum).collect(),
        command: options.words.clone(),
        ring_bytes_per_cpu: sources[0].rings.allocated_bytes() as u64,
        functions: sources.iter().flat_map(|s| plan::function_table(&s.decision, &s.tracepoints)).collect(),
        left_out: sources
            .iter()
            .flat_map(|s| &s.decision.left_out)
            .map(|(name, reason)| meta::LeftOut { name: name.clone(), reason: reason.clone() })
            .collect(),
        hz: kernel::config().get("HZ").and_then(|v| v.parse().ok()).unwrap_or(0),
        drop_reasons: d.drop_reasons.clone(),
        pauses: sources.iter().filter(|s| s.is_packets()).any(|s| {
            s.tracepoints.iter().any(|t| t.name == "sched_switch")
                && !s.decision.left_out.iter().any(|(name, _)| name == "tracepoint sched_switch")
        }),
        started,
        part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_given_out_again_names_either_namespace() {
        let device = |netns_name: &str, name: &str| meta::Device {
            netns: 7,
            netns_name: netns_name.into(),
            ifindex: 1,
            name: name.into(),
            ..meta::Device::default()
        };
        let mut known = Vec::new();
        assert_eq!(learn(&mut known, device("a", "lo")), Some(device("a", "lo")));
        assert_eq!(learn(&mut known, device("a", "lo")), None);
        assert_eq!(learn(&mut known, device("a", "x")), Some(device("a", "x")));
        assert_eq!(learn(&mut known, device("b", "lo")), Some(device("a or b", "lo")));
        assert_eq!(learn(&mut known, device("b", "lo")), None);
        assert_eq!(learn(&mut known, device("c", "lo")), Some(device("a or c", "lo")));
        assert_eq!(known, [device("a or c", "lo")]);
        // what was called so last is called otherwise
        assert_eq!(rename(&mut known, (7, None), "a", "x"), []);
        assert_eq!(rename(&mut known, (7, None), "c", "d"), [device("a or d", "lo")]);
    }
}
