//! Puts the page that `ui/` was built to into the program. Without it the program says how to build it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    // Asked for when it runs: a build directory may have been moved since this was compiled.
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let dist = Path::new(&here).join("../../ui/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files: Vec<PathBuf> = fs::read_dir(&dist)
        .map(|entries| entries.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_file()).collect())
        .unwrap_or_default();
    files.retain(|p| p.extension().is_some_and(|e| e != "map"));
    files.sort();
    if !files.iter().any(|f| f.ends_with("index.html")) {
        files.clear();
    }
    let mut code =
        String::from("/// Files of the page: name and content.\npub const FILES: &[(&str, &[u8])] = &[\n");
    for f in files {
        let name = f.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let _ = writeln!(code, "    ({name:?}, include_bytes!({:?})),", f.display().to_string());
    }
    code += "];\n";
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("page.rs"), code).expect("the build directory can be written");
}
