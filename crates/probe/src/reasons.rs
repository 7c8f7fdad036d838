//! Drop reasons by the kernel's own names.
//!
//! A reason's upper half says whose it is (`enum skb_drop_reason_subsys`, include/net/dropreason.h): 0 is the core's `enum skb_drop_reason`; WiFi, Open
//! vSwitch, queueing disciplines have enums of their own, in vmlinux or in their module. Which enum belongs to which subsystem is
//! said nowhere by name, but each begins with a marker: a member whose name begins with `__` and whose value is the subsystem's number,
//! shifted.

use crate::btf::{Btf, kind};
use std::collections::BTreeMap;
use std::sync::Arc;

const SUBSYSTEM_SHIFT: u32 = 16;

/// Number and name of every reason that the given types know. `btfs`: vmlinux first.
pub fn drop_reasons(btfs: &[Arc<Btf>]) -> Vec<(u32, String)> {
    let Some(vmlinux) = btfs.first() else { return Vec::new() };
    let Some(core) = vmlinux.find(kind::ENUM, "skb_drop_reason") else { return Vec::new() };
    let mut out = BTreeMap::new();
    for (name, value) in vmlinux.enum_values(core) {
        let name = name.trim_start_matches("SKB_DROP_REASON_").trim_start_matches("SKB_");
        out.entry(value as u32).or_insert_with(|| name.to_string());
    }
    let subsystems = subsystems(vmlinux);
    for b in btfs {
        for id in b.own_ids().filter(|id| b.get(*id).is_some_and(|t| t.kind == kind::ENUM)) {
            of_subsystem(&b.enum_values(id), &subsystems, &mut out);
        }
    }
    out.into_iter().collect()
}

/// Numbers of those that have an enum of their own.
fn subsystems(vmlinux: &Btf) -> Vec<u32> {
    let Some(id) = vmlinux.find(kind::ENUM, "skb_drop_reason_subsys") else { return Vec::new() };
    let all = vmlinux.enum_values(id).into_iter();
    all.filter(|(name, value)| *value > 0 && !name.ends_with("_NUM")).map(|(_, value)| value as u32).collect()
}

/// Adds the members of an enum that has a subsystem's marker.
fn of_subsystem(members: &[(String, i32)], subsystems: &[u32], out: &mut BTreeMap<u32, String>) {
    let marked = subsystems.iter().find(|s| {
        let marker = **s << SUBSYSTEM_SHIFT;
        members
            .iter()
            .any(|(name, value)| *value as u32 == marker && name.starts_with("__") && name.contains("DROP"))
    });
    let Some(subsystem) = marked else { return };
    for (name, value) in members
        .iter()
        .filter(|(name, v)| *v as u32 >> SUBSYSTEM_SHIFT == *subsystem && !name.starts_with("__"))
    {
        out.entry(*value as u32).or_insert_with(|| name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF of enums alone, as the kernel lays it out (Documentation/bpf/btf.rst).
    fn btf(name: &str, enums: &[(&str, &[(&str, i32)])], base: Option<Arc<Btf>>) -> Arc<Btf> {
        let first_string = base.as_ref().map_or(0, |_| BASE_STRINGS);
        let (mut types, mut strings) = (Vec::new(), vec![0u8]);
        let word = |strings: &mut Vec<u8>, s: &str| {
            let at = first_string + strings.len() as u32;
            strings.extend(s.bytes().chain([0]));
            at
        };
        for (name, members) in enums {
            let head = [word(&mut strings, name), u32::from(kind::ENUM) << 24 | members.len() as u32, 4];
            types.extend(head.iter().flat_map(|w| w.to_le_bytes()));
            for (name, value) in *members {
                types.extend(word(&mut strings, name).to_le_bytes());
                types.extend(value.to_le_bytes());
            }
        }
        if base.is_none() {
            strings.resize(BASE_STRINGS as usize, 0);
        }
        let sizes = [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        bytes.extend(sizes.iter().flat_map(|w| w.to_le_bytes()));
        bytes.extend(types);
        bytes.extend(strings);
        Arc::new(Btf::parse(name, &bytes, base).expect("well-formed"))
    }

    const BASE_STRINGS: u32 = 1024;

    #[test]
    fn reasons_of_subsystems_have_names() {
        // as Debian's 7.2 has them
        let vmlinux = btf(
            "vmlinux",
            &[
                ("skb_drop_reason", &[("SKB_NOT_DROPPED_YET", 0), ("SKB_DROP_REASON_NO_SOCKET", 3)]),
                (
                    "skb_drop_reason_subsys",
                    &[
                        ("SKB_DROP_REASON_SUBSYS_CORE", 0),
                        ("SKB_DROP_REASON_SUBSYS_MAC80211_UNUSABLE", 1),
                        ("SKB_DROP_REASON_SUBSYS_QDISC", 3),
                        ("SKB_DROP_REASON_SUBSYS_NUM", 4),
                    ],
                ),
                (
                    "qdisc_drop_reason",
                    &[
                        ("QDISC_DROP_UNSPEC", 0),
                        ("__QDISC_DROP_REASON", 0x30000),
                        ("QDISC_DROP_CONGESTED", 0x30003),
                    ],
                ),
                ("flags", &[("WHATEVER", 0x30000), ("ELSE_DROP", 0x30003), ("__LAST", 0x40000)]),
            ],
            None,
        );
        let wifi = btf(
            "mac80211",
            &[(
                "mac80211_drop_reason",
                &[("RX_CONTINUE", 1), ("___RX_DROP_UNUSABLE", 0x10000), ("RX_DROP_U_MIC_FAIL", 0x10001)],
            )],
            Some(vmlinux.clone()),
        );
        let named = drop_reasons(&[vmlinux, wifi]);
        let expected = [
            (0, "NOT_DROPPED_YET"),
            (3, "NO_SOCKET"),
            (0x10001, "RX_DROP_U_MIC_FAIL"),
            (0x30003, "QDISC_DROP_CONGESTED"),
        ];
        assert_eq!(named, expected.map(|(n, s)| (n, s.to_string())));
    }

    #[test]
    fn the_running_kernels_reasons_are_named() {
        let named = drop_reasons(&Btf::running().expect("this kernel has BTF"));
        assert!(named.iter().any(|(_, n)| n == "NO_SOCKET"));
        assert!(named.windows(2).all(|w| w[0].0 < w[1].0), "one name a number");
    }
}
