//! Writes crates/probe/src/wire.rs from the BTF of the compiled object, so that the record layout exists once, in
//! bpf/include/wire.h. Part of the crate and not of the build script, because the result is committed and compared.

use crate::btf::{Btf, kind};
use std::fmt::Write;

const STRUCTS: [&str; 35] = [
    "kp_head",
    "kp_call",
    "kp_point",
    "kp_member",
    "kp_lineage",
    "kp_process",
    "kp_event",
    "kp_footprint",
    "kp_place",
    "kp_pause",
    "kp_crossing",
    "kp_socket",
    "kp_tcp",
    "kp_gap",
    "kp_thread_time",
    "kp_sample",
    "kp_stack",
    "kp_announcement",
    "kp_argument",
    "kp_hook",
    "kp_rate",
    "kp_program",
    "kp_radio_copy",
    "kp_radio_point",
    "kp_radio",
    "kp_carrier",
    "kp_frame",
    "kp_work_key",
    "kp_work",
    "kp_use_key",
    "kp_use",
    "kp_peer",
    "kp_account_head",
    "kp_rule",
    "kp_ring_ctl",
];
const ENUMS: [&str; 13] = [
    "kp_kind",
    "kp_crossing_kind",
    "kp_loss",
    "kp_event_kind",
    "kp_lineage_kind",
    "kp_sleep",
    "kp_work_kind",
    "kp_purpose",
    "kp_use_kind",
    "kp_rule_kind",
    "kp_argument_from",
    "kp_argument_flag",
    "kp_call_side",
];

fn camel(name: &str) -> String {
    name.trim_start_matches("kp_").split('_').map(|w| w[..1].to_uppercase() + &w[1..]).collect()
}

fn rust_type(b: &Btf, id: u32) -> String {
    let id = b.strip(id);
    let Some(t) = b.get(id) else { return "()".into() };
    match t.kind {
        kind::ARRAY => b.array(id).map_or("()".into(), |(e, n)| format!("[{}; {n}]", rust_type(b, e))),
        kind::STRUCT => camel(b.str(t.name_off)),
        _ => {
            let signed = b.name_of(id).starts_with("long long") || matches!(b.name_of(id), "long" | "int");
            let char8 = t.size_or_type == 1;
            format!("{}{}", if signed && !char8 { "i" } else { "u" }, t.size_or_type * 8)
        }
    }
}

/// The whole file. `None`: a type is missing from the object.
pub fn generate(b: &Btf) -> Option<String> {
    let mut o = String::from(
        "//! Generated from bpf/include/wire.h by way of the object's BTF (`UPDATE_WIRE=1 cargo test -p kpat-probe --test wire`).\n\
         //! Not edited by hand: a test compares it with the object. `struct kp_x_y` is `XY` here, `enum kp_x_y` the module `x_y`.\n\n#![allow(dead_code)]\n\n",
    );
    for name in ENUMS {
        let id = b.find(kind::ENUM, name)?;
        let _ = writeln!(o, "pub mod {} {{", name.trim_start_matches("kp_"));
        for (n, v) in b.enum_values(id) {
            let _ = writeln!(o, "    pub const {}: u32 = {v};", n.trim_start_matches("KP_"));
        }
        o.push_str("}\n");
    }
    for name in STRUCTS {
        let id = b.find(kind::STRUCT, name)?;
        let _ = writeln!(o, "\n#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct {} {{", camel(name));
        for m in b.members(id) {
            let _ = writeln!(o, "    pub {}: {},", b.str(m.name_off), rust_type(b, m.type_id));
        }
        o.push_str("}\n");
        let _ = writeln!(o, "const _: () = assert!(size_of::<{}>() == {});", camel(name), b.size_of(id));
    }
    Some(o)
}
