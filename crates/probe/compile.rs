//! How the kernel sides are compiled, for the build script, which does so for one processor, and for the test that does so for each.

use std::path::Path;
use std::process::Command;

/// Processors that bpf/arch has a file for: as Rust calls them, and as libbpf's headers do (`__TARGET_ARCH_...`).
pub const PROCESSORS: [(&str, &str); 2] = [("x86_64", "x86"), ("aarch64", "arm64")];

/// One object: the name of its source, of its variant, and what is defined for that.
pub type Object = (&'static str, &'static str, &'static [&'static str]);

/// All objects of one processor.
pub fn objects() -> Vec<Object> {
    let variants = [
        ("direct", &["-DKPAT_DIRECT"][..]),
        ("direct-traced", &["-DKPAT_DIRECT", "-DKPAT_TRACED_CONTEXT"]),
        ("read", &[]),
        ("read-traced", &["-DKPAT_TRACED_CONTEXT"]),
    ];
    let all = ["kpat", "app", "announce", "profile", "programs", "wifi"]
        .into_iter()
        .flat_map(|s| variants.map(|(v, d)| (s, v, d)));
    // announce, wifi: off the packets' way, so the way of reading that every kernel has; profile: knows the context by itself;
    // programs: reads nothing of the kernel's
    all.filter(|(source, variant, _)| match *source {
        "announce" | "wifi" => !variant.starts_with("direct"),
        "profile" => variant.ends_with("traced"),
        "programs" => *variant == "read",
        _ => true,
    })
    .collect()
}

pub fn clang() -> String {
    if let Ok(c) = std::env::var("KPAT_CLANG") {
        return c;
    }
    ["clang-19", "clang", "clang-20", "clang-18", "clang-17", "clang-16"]
        .into_iter()
        .find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()))
        .unwrap_or_else(|| panic!("no clang found: install clang-19 (scripts/setup build) or set KPAT_CLANG"))
        .to_string()
}

/// Compiles `source` for `processor` (libbpf's name), with the headers of `bpf`, the folder of that name.
pub fn compile(clang: &str, bpf: &Path, processor: &str, defines: &[&str], source: &Path, object: &Path) {
    let mut c = Command::new(clang);
    c.args(["-g", "-O2", "-Wall", "-Werror", "-Wno-unused-function", "-target", "bpf", "-mcpu=v3"]);
    c.arg(format!("-D__TARGET_ARCH_{processor}"));
    c.args(defines);
    c.arg("-I").arg(bpf).arg("-I").arg(bpf.join("include"));
    // <asm/types.h>, which is the same for all that BPF is compiled for
    c.args(["-idirafter", &format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH)]);
    c.arg("-fdebug-prefix-map=".to_string() + &bpf.display().to_string() + "=bpf");
    c.arg("-c").arg(source).arg("-o").arg(object);
    let status = c.status().unwrap_or_else(|e| panic!("cannot run {clang}: {e}"));
    assert!(
        status.success(),
        "{clang} could not compile {} for {processor} (are libbpf-dev and linux-libc-dev installed?)",
        source.display()
    );
    // DWARF is of no use to the loader; BTF stays. Without the tool the binary is only larger.
    let strip = clang.replace("clang", "llvm-strip");
    let _ = Command::new(strip).arg("-g").arg(object).status();
}
