//! Compiles the kernel sides (bpf/kpat.bpf.c, bpf/app.bpf.c, bpf/announce.bpf.c, bpf/profile.bpf.c) once per way of reading kernel memory (`direct`: typed pointer casts, 6.2;
//! `read`: a helper call) and of knowing the context (the preemption count, or `traced` by tracepoints), for the processor that the crate is built
//! for. Needs clang 16 or newer and libbpf's headers.

mod compile;

use std::path::{Path, PathBuf};

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let bpf = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../bpf");
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = variable("CARGO_CFG_TARGET_ARCH");
    let (_, processor) = compile::PROCESSORS
        .into_iter()
        .find(|(name, _)| *name == target && variable("CARGO_CFG_TARGET_ENDIAN") == "little")
        .unwrap_or_else(|| panic!("no kernel side for {target}: bpf/arch has no file for it"));
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-env-changed=KPAT_CLANG");
    let clang = compile::clang();
    for (source, variant, defines) in compile::objects() {
        let object = out.join(format!("{source}-{variant}.bpf.o"));
        compile::compile(&clang, &bpf, processor, defines, &bpf.join(format!("{source}.bpf.c")), &object);
    }
}
