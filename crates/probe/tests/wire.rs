//! The committed Rust types are those of the compiled kernel side.

use kpat_probe::{
    btf::Btf,
    elf,
    object::{Build, Side},
    wiregen,
};

#[test]
fn rust_types_are_the_objects() {
    for build in Build::ALL {
        let bytes = build.object(Side::Packets);
        let map = elf::map(bytes).expect("our object is an ELF file");
        let s = map.sections.iter().find(|s| s.name == ".BTF").expect("BTF section");
        let btf = Btf::parse("object", &bytes[s.offset..s.offset + s.size], None).expect("BTF");
        let want = wiregen::generate(&btf).expect("all record types are in the object");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire.rs");
        if std::env::var_os("UPDATE_WIRE").is_some() {
            std::fs::write(path, &want).expect("write");
        }
        let have = std::fs::read_to_string(path).expect("wire.rs");
        assert!(have == want, "wire.rs is not what bpf/include/wire.h says; run with UPDATE_WIRE=1");
    }
}
