//! The committed Rust types are those of the compiled kernel side.

use kpat_model::codes::{Code, EventKind, LineageKind, LossCause, Sleep};
use kpat_model::{Busy, Crossing, Purpose, UseKind};
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
    let lists: [(&str, &str, &[Code]); 5] = [
        ("kp_loss", "KP_LOSS_", LossCause::CODES),
        ("kp_event_kind", "KP_EV_", EventKind::CODES),
        ("kp_lineage_kind", "KP_LIN_", LineageKind::CODES),
        ("kp_sleep", "KP_SLEEP_", Sleep::CODES),
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

/// The same of a profile's numbers: each has a name here, and here there are no others.
#[test]
fn numbers_of_work_are_the_models() {
    let btf = btf(Build::ALL[0]);
    let values = |name: &str| -> Vec<i64> {
        let values = btf.enum_values(btf.find(kind::ENUM, name).expect(name));
        values.iter().map(|(_, v)| *v as i64).collect()
    };
    let ours = |all: &mut dyn Iterator<Item = u8>| all.map(i64::from).collect::<Vec<_>>();
    assert_eq!(values("kp_work_kind"), ours(&mut Busy::ALL.iter().map(|b| *b as u8)));
    assert_eq!(values("kp_purpose"), ours(&mut Purpose::ALL.iter().map(|p| *p as u8)));
    assert_eq!(values("kp_use_kind"), ours(&mut UseKind::ALL.iter().map(|u| *u as u8)));
}
