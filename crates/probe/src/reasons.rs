//! Drop reasons by the kernel's own names.
//!
//! A reason's upper half says whose it is (`enum skb_drop_reason_subsys`, include/net/dropreason.h): 0 is the core's `enum skb_drop_reason`; WiFi, Open
//! vSwitch, queueing disciplines have enums of their own, in vmlinux or in their module. Which enum belongs to which subsystem is stated
//! nowhere; all are called `..._drop_reason`, and their members' upper half is the subsystem's number. Members that begin with `__`
//! mark where a subsystem begins; an enum with such a name says once more what the plain one does (mac80211). One enum may
//! have reasons of two subsystems (mac80211 until 6.12). Rejected: to look for the member that marks a subsystem's beginning. mac80211
//! has it in the enum whose members have no names to show.

use crate::btf::{Btf, kind};
use std::collections::BTreeMap;
use std::sync::Arc;

const SUBSYSTEM_SHIFT: u32 = 16;
const CORE: &str = "skb_drop_reason";
const ENDING: &str = "_drop_reason";
const MARKER: &str = "__";

/// Number and name of every reason that the given types know. `btfs`: vmlinux first.
pub fn drop_reasons(btfs: &[Arc<Btf>]) -> Vec<(u32, String)> {
    let Some(vmlinux) = btfs.first() else { return Vec::new() };
    let Some(core) = vmlinux.find(kind::ENUM, CORE) else { return Vec::new() };
    let mut out = BTreeMap::new();
    // The mask of subsystems is a member, too.
    let own = vmlinux.enum_values(core).into_iter().filter(|(_, v)| *v as u32 >> SUBSYSTEM_SHIFT == 0);
    for (name, value) in own {
        let name = name.trim_start_matches("SKB_DROP_REASON_").trim_start_matches("SKB_");
        out.entry(value as u32).or_insert_with(|| name.to_string());
    }
    let subsystems = subsystems(vmlinux);
    for b in btfs {
        for id in b.own_ids().filter(|id| b.get(*id).is_some_and(|t| t.kind == kind::ENUM)) {
            let own = |name: &str| name.ends_with(ENDING) && name != CORE && !name.starts_with(MARKER);
            if !own(b.name_of(id)) {
                continue;
            }
            for (name, value) in b.enum_values(id) {
                let value = value as u32;
                if !name.starts_with(MARKER) && subsystems.contains(&(value >> SUBSYSTEM_SHIFT)) {
                    out.entry(value).or_insert(name);
                }
            }
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

    const CORE_REASONS: (&str, &[(&str, i32)]) =
        ("skb_drop_reason", &[("SKB_NOT_DROPPED_YET", 0), ("SKB_DROP_REASON_NO_SOCKET", 3)]);

    fn check(btfs: &[Arc<Btf>], expected: &[(u32, &str)]) {
        let named = drop_reasons(btfs);
        let named: Vec<(u32, &str)> = named.iter().map(|(n, s)| (*n, s.as_str())).collect();
        assert_eq!(named, expected);
    }

    #[test]
    fn reasons_of_subsystems_have_names() {
        // some members of each enum, as Debian's 7.2 has them
        let vmlinux = btf(
            "vmlinux",
            &[
                CORE_REASONS,
                (
                    "skb_drop_reason_subsys",
                    &[
                        ("SKB_DROP_REASON_SUBSYS_CORE", 0),
                        ("SKB_DROP_REASON_SUBSYS_MAC80211_UNUSABLE", 1),
                        ("SKB_DROP_REASON_SUBSYS_OPENVSWITCH", 2),
                        ("SKB_DROP_REASON_SUBSYS_QDISC", 3),
                        ("SKB_DROP_REASON_SUBSYS_NUM", 4),
                    ],
                ),
                (
                    "qdisc_drop_reason",
                    &[
                        ("QDISC_DROP_UNSPEC", 0),
                        ("__QDISC_DROP_REASON", 0x30000),
                        ("QDISC_DROP_GENERIC", 0x30001),
                    ],
                ),
                ("flags", &[("WHATEVER", 0x30000), ("ELSE_DROP", 0x30003), ("__LAST", 0x40000)]),
                ("card_drop_reason", &[("CARD_DROP_NONE", 0), ("CARD_DROP_OTHER", 0x70001)]),
            ],
            None,
        );
        let wifi = btf(
            "mac80211",
            &[
                (
                    "___mac80211_drop_reason",
                    &[
                        ("___RX_CONTINUE", 1),
                        ("___RX_DROP_UNUSABLE", 0x10000),
                        ("___RX_DROP_U_MIC_FAIL", 0x10001),
                    ],
                ),
                ("mac80211_drop_reason", &[("RX_CONTINUE", 1), ("RX_DROP_U_MIC_FAIL", 0x10001)]),
            ],
            Some(vmlinux.clone()),
        );
        let switch = btf(
            "openvswitch",
            &[("ovs_drop_reason", &[("__OVS_DROP_REASON", 0x20000), ("OVS_DROP_LAST_ACTION", 0x20001)])],
            Some(vmlinux.clone()),
        );
        let expected = [
            (0, "NOT_DROPPED_YET"),
            (3, "NO_SOCKET"),
            (0x10001, "RX_DROP_U_MIC_FAIL"),
            (0x20001, "OVS_DROP_LAST_ACTION"),
            (0x30001, "QDISC_DROP_GENERIC"),
        ];
        check(&[vmlinux, wifi, switch], &expected);
    }

    #[test]
    fn one_enum_has_reasons_of_two_subsystems() {
        // as Debian's 6.12 has them
        let vmlinux = btf(
            "vmlinux",
            &[
                CORE_REASONS,
                (
                    "skb_drop_reason_subsys",
                    &[
                        ("SKB_DROP_REASON_SUBSYS_CORE", 0),
                        ("SKB_DROP_REASON_SUBSYS_MAC80211_UNUSABLE", 1),
                        ("SKB_DROP_REASON_SUBSYS_MAC80211_MONITOR", 2),
                        ("SKB_DROP_REASON_SUBSYS_NUM", 4),
                    ],
                ),
            ],
            None,
        );
        let wifi = btf(
            "mac80211",
            &[(
                "mac80211_drop_reason",
                &[
                    ("RX_QUEUED", 0),
                    ("RX_DROP_MONITOR", 0x20000),
                    ("RX_DROP_M_BAD_BCN_KEYIDX", 0x20002),
                    ("RX_DROP_U_MIC_FAIL", 0x10001),
                ],
            )],
            Some(vmlinux.clone()),
        );
        let expected = [
            (0, "NOT_DROPPED_YET"),
            (3, "NO_SOCKET"),
            (0x10001, "RX_DROP_U_MIC_FAIL"),
            (0x20000, "RX_DROP_MONITOR"),
            (0x20002, "RX_DROP_M_BAD_BCN_KEYIDX"),
        ];
        check(&[vmlinux, wifi], &expected);
    }

    #[test]
    fn the_running_kernels_reasons_are_named() {
        let named = drop_reasons(&Btf::running().expect("this kernel has BTF"));
        assert!(named.iter().any(|(_, n)| n == "NO_SOCKET"));
        assert!(named.windows(2).all(|w| w[0].0 < w[1].0), "one name a number");
    }
}
