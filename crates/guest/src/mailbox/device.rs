//! The device with the shared memory: plugged into a guest that runs, and out of it.
//!
//! It goes to a bus to which QEMU can plug. The first one is taken by QEMU itself where it can; the root bus of `q35` and of `microvm` takes nothing, and an
//! empty root port or bridge behind it is looked for. A guest that has the device from its start keeps it.

use super::layout::*;
use super::patience::Patience;
use super::region::Region;
use crate::error::{Error, Result};
use crate::guest::Guest;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// How long a guest may take, of its own time, to give a new device an address, or to let one go. A root port's own way of letting one go takes five
/// seconds, in which somebody could change his mind.
const PLUG: Duration = Duration::from_secs(12);

/// The device that the guest had at its start, which stays.
const AT_START: u32 = 0;
const MEMORY: &str = "kpat-memory";
/// What makes a guest have it.
const HOW: &str =
    "-object memory-backend-memfd,id=kpat-memory,size=8M,share=on -device ivshmem-plain,memdev=kpat-memory";

fn names(number: u32) -> (String, String) {
    if number == AT_START {
        return (MEMORY.into(), String::new());
    }
    (format!("kpat-memory-{number}"), format!("kpat-device-{number}"))
}

/// A number that no device of ours in this guest ever had. QEMU remembers the names of memory whose device is gone, and aborts,
/// guest and all, when a name comes again at the same place.
fn unused() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // Changes every 4 ms, comes again after half a year.
    ((now.as_millis() / 4) as u32).max(AT_START + 1)
}

/// The number of the device that the guest has, or is going to have.
pub(super) fn number(guest: &Guest) -> Result<u32> {
    let all = guest.qmp().command("qom-list", json!({"path": "/objects"}))?;
    let has = all.as_array().is_some_and(|a| a.iter().any(|o| o["name"].as_str() == Some(MEMORY)));
    Ok(if has { AT_START } else { unused() })
}

/// Adds memory and device to QEMU and maps the memory here.
pub(super) fn plug(guest: &Guest, number: u32) -> Result<Region> {
    let files = || -> HashSet<(u64, u64)> { anonymous(guest.pid()).into_iter().map(|(_, id)| id).collect() };
    if number == AT_START {
        return match &anonymous(guest.pid())[..] {
            [(path, _)] => {
                let file = OpenOptions::new().read(true).write(true).open(path).map_err(Error::io(path))?;
                Region::map(&file).map_err(Error::io("the shared memory"))
            }
            _ => Err(Error::Unsupported(format!(
                "{MEMORY} cannot be found in QEMU's open files; it is made by {HOW}"
            ))),
        };
    }
    let before = files();
    let (memory, device) = names(number);
    guest.qmp().command(
        "object-add",
        json!({"qom-type": "memory-backend-memfd", "id": memory, "size": SIZE, "share": true}),
    )?;
    let unplug = |e: Error| {
        let _ = guest.qmp().command("object-del", json!({"id": memory}));
        e
    };
    let (path, _) =
        anonymous(guest.pid()).into_iter().find(|(_, id)| !before.contains(id)).ok_or_else(|| {
            unplug(Error::Unsupported(
                "the shared memory cannot be found in QEMU's open files: be its user or root".into(),
            ))
        })?;
    let file: File =
        OpenOptions::new().read(true).write(true).open(&path).map_err(Error::io(path)).map_err(unplug)?;
    let region = Region::map(&file).map_err(Error::io("the shared memory")).map_err(unplug)?;
    add(guest, json!({"driver": "ivshmem-plain", "id": device, "memdev": memory})).map_err(unplug)?;
    Ok(region)
}

/// Adds a device: where QEMU would put it, else behind the first port or bridge that has room.
fn add(guest: &Guest, device: Value) -> Result<()> {
    let first = match guest.qmp().command("device_add", device.clone()) {
        Err(e @ Error::Refused { .. }) => e,
        other => return other.map(drop),
    };
    // A kernel finds what appears behind a port if that port had nothing before.
    for port in ports(&guest.qmp().command("query-pci", json!({}))?) {
        let mut device = device.clone();
        device["bus"] = port.into();
        match guest.qmp().command("device_add", device) {
            Err(Error::Refused { .. }) => {}
            other => return other.map(drop),
        }
    }
    Err(Error::Unsupported(format!(
        "no bus of this guest takes a device while it runs ({first}): it needs an empty port (QEMU's -device pcie-root-port,id=NAME,chassis=N; libvirt's \
         controller of the model pcie-root-port), or the device from its \
         start (QEMU's {HOW}); --by debugger needs none"
    )))
}

/// The ports and bridges that have nothing behind them, by the names that their buses have, too; outer ones first.
fn ports(buses: &Value) -> Vec<String> {
    let (mut found, mut all) = (Vec::new(), Vec::new());
    all.extend(buses.as_array().into_iter().flatten());
    let mut next = 0;
    while let Some(bus) = all.get(next).copied() {
        next += 1;
        for device in bus["devices"].as_array().into_iter().flatten() {
            let bridge = &device["pci_bridge"];
            if bridge.is_null() {
                continue;
            }
            match (bridge["devices"].as_array(), device["qdev_id"].as_str()) {
                (Some(behind), _) if !behind.is_empty() => all.push(bridge),
                (_, Some(id)) if !id.is_empty() => found.push(id.to_owned()),
                _ => {}
            }
        }
    }
    found
}

/// Open anonymous files of the right size: path and identity.
fn anonymous(pid: u32) -> Vec<(String, (u64, u64))> {
    let Ok(all) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    all.flatten()
        .filter(|e| std::fs::read_link(e.path()).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:")))
        .filter_map(|e| {
            let data = std::fs::metadata(e.path()).ok()?;
            (data.len() == SIZE as u64).then(|| (e.path().display().to_string(), (data.dev(), data.ino())))
        })
        .collect()
}

/// Where the guest put the device's memory.
pub(super) fn wait_for_address(guest: &Guest, number: u32) -> Result<u64> {
    let (memory, _) = names(number);
    let patience = Patience::new(guest, PLUG);
    let mut last = None;
    loop {
        let text = guest.qmp().monitor("info mtree -f")?;
        let found = crate::memory::layout::parse(&text)?
            .into_iter()
            .find(|r| r.name.ends_with(&memory) && r.len == SIZE as u64 && r.physical & (PAGE - 1) == 0)
            .map(|r| r.physical);
        // Seen twice: while it looks how large the memory is, a guest writes other addresses.
        if found.is_some() && found == last {
            guest.memory().refresh(guest.qmp())?;
            return Ok(found.unwrap_or_default());
        }
        last = found;
        if patience.is_over() {
            if number != AT_START {
                let _ = unplug(guest, number);
            }
            return Err(Error::Unsupported(format!(
                "the guest gave the shared memory no address: its kernel has no hot plugging for PCI, or the port has no room for 8 MB (QEMU's -device \
                 pcie-root-port,pref64-reserve=32M has); it can have the device from its start ({HOW})"
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A guest that is stopped gives nothing an address, and lets nothing go.
pub(super) fn runs(guest: &Guest) -> Result<bool> {
    Ok(guest.qmp().command("query-status", json!({}))?["running"].as_bool() == Some(true))
}

pub(super) fn unplug(guest: &Guest, number: u32) -> Result<()> {
    if number == AT_START {
        return guest.memory().refresh(guest.qmp());
    }
    let (memory, device) = names(number);
    let gone = |command: &str, id: &str| match guest.qmp().command(command, json!({"id": id})) {
        Err(Error::Refused { words, .. }) if words.contains("not found") => Ok(true),
        Err(e) => Err(e),
        Ok(_) => Ok(false),
    };
    let patience = Patience::new(guest, PLUG);
    gone("device_del", &device)?;
    // The device is gone when the guest has let it go; only then its memory can be.
    loop {
        let listed = guest.qmp().command("qom-list", json!({"path": "/machine/peripheral"}))?;
        if !listed.as_array().is_some_and(|a| a.iter().any(|d| d["name"].as_str() == Some(&device))) {
            break;
        }
        if !runs(guest)? {
            return Err(Error::Unsupported(
                "the guest is stopped and cannot let the shared memory's device go; it stays plugged, unused"
                    .into(),
            ));
        }
        if patience.is_over() {
            return Err(Error::Unsupported(
                "the guest does not let the shared memory's device go; it stays plugged, unused".into(),
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    guest.memory().refresh(guest.qmp())?;
    gone("object-del", &memory).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_with_nothing_behind_them_are_found_by_name() {
        let device = |id: &str, behind: Value| json!({"slot": 1, "qdev_id": id, "pci_bridge": {"bus": {}, "devices": behind}});
        let card = json!({"slot": 0, "qdev_id": "net0"});
        let buses = json!([{"bus": 0, "devices": [
            card, device("pci.1", json!([card])), device("", json!([])), device("pci.2", json!([])),
            device("switch", json!([device("down", json!([]))])), {"slot": 9, "qdev_id": "pci.3", "pci_bridge": {"bus": {}}},
        ]}]);
        assert_eq!(ports(&buses), ["pci.2", "pci.3", "down"]);
        for odd in [json!(null), json!({}), json!([1, {"devices": 7}])] {
            assert!(ports(&odd).is_empty());
        }
    }
}
