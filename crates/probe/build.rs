//! Compiles the kernel sides (bpf/kpat.bpf.c, bpf/app.bpf.c, bpf/announce.bpf.c) once per way of reading kernel memory (`direct`: typed pointer casts, 6.2;
//! `read`: a helper call) and of knowing the context (the preemption count, or `traced` by tracepoints). Needs clang 16
//! or newer and libbpf's headers.

use std::path::{Path, PathBuf};
use std::process::Command;

fn clang() -> String {
    if let Ok(c) = std::env::var("KPAT_CLANG") {
        return c;
    }
    ["clang-19", "clang", "clang-20", "clang-18", "clang-17", "clang-16"]
        .into_iter()
        .find(|c| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success()))
        .unwrap_or_else(|| panic!("no clang found: install clang-19 (scripts/setup build) or set KPAT_CLANG"))
        .to_string()
}

fn main() {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../../bpf");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let arch = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        Ok(other) => panic!("no kernel side for {other} yet"),
        Err(e) => panic!("{e}"),
    };
    println!("cargo:rerun-if-changed={}", root.display());
    println!("cargo:rerun-if-env-changed=KPAT_CLANG");
    let clang = clang();
    let builds = [
        ("direct", &["-DKPAT_DIRECT"][..]),
        ("direct-traced", &["-DKPAT_DIRECT", "-DKPAT_TRACED_CONTEXT"]),
        ("read", &[]),
        ("read-traced", &["-DKPAT_TRACED_CONTEXT"]),
    ];
    let sources = ["kpat", "app", "announce"];
    let all = sources.iter().flat_map(|s| builds.map(|b| (s, b)));
    // off the packets' way, so the way of reading that every kernel has
    for (source, (name, defines)) in
        all.filter(|(s, (name, _))| **s != "announce" || !name.starts_with("direct"))
    {
        let mut c = Command::new(&clang);
        c.args(["-g", "-O2", "-Wall", "-Werror", "-Wno-unused-function", "-target", "bpf", "-mcpu=v3"]);
        c.arg(format!("-D__TARGET_ARCH_{arch}"));
        c.args(defines);
        c.arg("-I").arg(&root).arg("-I").arg(root.join("include"));
        c.args(["-idirafter", &format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH)]);
        c.arg("-fdebug-prefix-map=".to_string() + &root.display().to_string() + "=bpf");
        c.arg("-c").arg(root.join(format!("{source}.bpf.c")));
        let object = out.join(format!("{source}-{name}.bpf.o"));
        c.arg("-o").arg(&object);
        let status = c.status().unwrap_or_else(|e| panic!("cannot run {clang}: {e}"));
        assert!(
            status.success(),
            "{clang} could not compile bpf/{source}.bpf.c (are libbpf-dev and linux-libc-dev installed?)"
        );
        // DWARF is of no use to the loader; BTF stays. Without the tool the binary is only larger.
        let strip = clang.replace("clang", "llvm-strip");
        let _ = Command::new(strip).arg("-g").arg(&object).status();
    }
}
