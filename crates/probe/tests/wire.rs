//! The committed Rust types are those of the compiled kernel side.

use kpat_model::Crossing;
use kpat_model::codes::{Code, EventKind, LineageKind, LossCause};
use kpat_probe::{
    btf::{Btf, kind},
    elf,
    object::{Build, Side},
    wiregen,
};

fn btf(build: Build) -> Btf {
    let bytes = build.object(Side::Packets);
    let map = elf::map(bytes).expect("our object is an ELF file");
    let s = map.sections.iter().find(|s| s.name == ".BTF").expect("BTF section");
    Btf::parse("object", &bytes[s.offset..s.offset + s.size], None).expect("BTF")
}

#[test]
fn rust_types_are_the_objects() {
    for build in Build::ALL {
        let want = wiregen::generate(&btf(build)).expect("all record types are in the object");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire.rs");
        if std::env::var_os("UPDATE_WIRE").is_some() {
            std::fs::write(path, &want).expect("write");
        }
        let have = std::fs::read_to_string(path).expect("wire.rs");
        assert!(have == want, "wire.rs is not what bpf/include/wire.h says; run with UPDATE_WIRE=1");
    }
}

/// Each number that the kernel side writes is in the registry, under a name that begins as it is called there.
#[test]
fn codes_are_in_the_registry() {
    let btf = btf(Build::ALL[0]);
    let lists: [(&str, &str, &[Code]); 4] = [
        ("kp_loss", "KP_LOSS_", LossCause::CODES),
        ("kp_event_kind", "KP_EV_", EventKind::CODES),
        ("kp_lineage_kind", "KP_LIN_", LineageKind::CODES),
        ("kp_crossing_kind", "KP_X_", Crossing::CODES),
    ];
    for (name, prefix, codes) in lists {
        let values = btf.enum_values(btf.find(kind::ENUM, name).expect(name));
        assert!(values.len() > 5, "{name}");
        for (called, number) in values.iter().filter(|(n, _)| !n.ends_with("_MAX")) {
            // These are records of their own in the log: no event has their number.
            if ["KP_EV_POLL", "KP_EV_POLLED", "KP_EV_STAMP"].contains(&called.as_str()) {
                assert!(codes.iter().all(|c| i64::from(c.number) != *number as i64), "{called}");
                continue;
            }
            let begins = called.trim_start_matches(prefix).to_lowercase().replace('_', "-");
            let code = codes.iter().find(|c| i64::from(c.number) == *number as i64);
            assert!(code.is_some_and(|c| c.name.starts_with(&begins)), "{called} = {number} is {code:?}");
        }
    }
}
