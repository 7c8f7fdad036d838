//! `kpat wireshark install`: the dissector and the link for capture interfaces, into the folders that Wireshark names itself.

use crate::output::Output;
use anyhow::{Context, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const DISSECTOR: &str = include_str!("kpat.lua");
const DISSECTOR_NAME: &str = "kpat.lua";
/// What is in every version of our dissector.
const MARK: &str = "kpat: way through the kernel";
const LINK_NAME: &str = "kpat";

#[derive(clap::Args)]
pub struct Args {
    /// Install for this user [default]
    #[arg(long, conflicts_with = "system")]
    personal: bool,
    /// Install for all users of this machine; needs root
    #[arg(long)]
    system: bool,
    /// Remove what was installed
    #[arg(long)]
    remove: bool,
}

/// Where Wireshark looks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Folders {
    lua: Option<PathBuf>,
    extcap: Option<PathBuf>,
}

impl Folders {
    /// From what `tshark -G folders` prints; names differ between versions.
    fn parse(text: &str, system: bool) -> Folders {
        let mut out = Folders::default();
        for line in text.lines() {
            let Some((name, path)) = line.split_once(':') else { continue };
            let (name, path) = (name.to_lowercase(), path.trim());
            if path.is_empty() {
                continue;
            }
            let personal = name.contains("personal");
            if name.contains("lua plugins") && personal != system {
                out.lua = Some(path.into());
            }
            // Before 4.2 there is one folder, the system's.
            if name.contains("extcap") && personal != system {
                out.extcap = Some(path.into());
            }
        }
        out
    }
}

fn folders(system: bool) -> anyhow::Result<Folders> {
    for program in ["tshark", "wireshark"] {
        let Ok(done) = Command::new(program).args(["-G", "folders"]).output() else { continue };
        let found = Folders::parse(&String::from_utf8_lossy(&done.stdout), system);
        if found.lua.is_some() {
            return Ok(found);
        }
    }
    bail!("cannot ask tshark or wireshark for their plugin folders; install one of them first")
}

/// What was done, for the user.
struct Done {
    path: PathBuf,
    what: &'static str,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let folders = folders(args.system)?;
    let mut done: Vec<Done> = Vec::new();
    if let Some(lua) = &folders.lua {
        done.extend(dissector(&lua.join(DISSECTOR_NAME), args.remove)?);
    }
    match &folders.extcap {
        Some(extcap) => done.extend(link(&extcap.join(LINK_NAME), args.remove)?),
        None => out.say(
            "this version of Wireshark has no per-user capture interfaces: install them with --system as root; the dissector works",
        ),
    }
    if out.json {
        let files: Vec<_> =
            done.iter().map(|d| json!({"path": d.path.display().to_string(), "what": d.what})).collect();
        out.value(&json!({"removed": args.remove, "files": files}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for d in &done {
        let verb = if args.remove { "removed" } else { "installed" };
        out.say(&format!("{verb}: {} ({})", d.path.display(), d.what));
    }
    if done.is_empty() {
        out.say("kpat is not installed there");
    }
    Ok(ExitCode::SUCCESS)
}

fn dissector(path: &Path, remove: bool) -> anyhow::Result<Option<Done>> {
    let done = Done { path: path.to_owned(), what: "dissector" };
    match std::fs::read(path) {
        Ok(found) if !String::from_utf8_lossy(&found).contains(MARK) => {
            bail!("{} does not belong to kpat; move it first", path.display());
        }
        Err(_) if remove => return Ok(None),
        _ => {}
    }
    if remove {
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        return Ok(Some(done));
    }
    make_folder(path)?;
    std::fs::write(path, DISSECTOR).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Some(done))
}

fn link(path: &Path, remove: bool) -> anyhow::Result<Option<Done>> {
    let done = Done { path: path.to_owned(), what: "capture interfaces" };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_symlink() => {
            bail!("{} does not belong to kpat; move it first", path.display());
        }
        Ok(_) => {
            std::fs::remove_file(path).with_context(|| format!("cannot replace {}", path.display()))?;
        }
        Err(_) if remove => return Ok(None),
        Err(_) => {}
    }
    if remove {
        return Ok(Some(done));
    }
    make_folder(path)?;
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    std::os::unix::fs::symlink(&own, path)
        .with_context(|| format!("cannot make the link {}", path.display()))?;
    Ok(Some(done))
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_old_and_new_versions() {
        let old = "Personal Lua Plugins:\t/h/.local/lib/wireshark/plugins\n\
                   Global Lua Plugins: \t/usr/lib/wireshark/plugins\n\
                   Extcap path:        \t/usr/lib/wireshark/extcap\n";
        let of = |lua: &str, extcap: Option<&str>| Folders {
            lua: Some(lua.into()),
            extcap: extcap.map(Into::into),
        };
        assert_eq!(Folders::parse(old, false), of("/h/.local/lib/wireshark/plugins", None));
        let system = of("/usr/lib/wireshark/plugins", Some("/usr/lib/wireshark/extcap"));
        assert_eq!(Folders::parse(old, true), system);
        let new = format!("{old}Personal Extcap path:\t/h/.local/lib/wireshark/extcap\n")
            .replace("\nExtcap", "\nGlobal Extcap");
        let personal = of("/h/.local/lib/wireshark/plugins", Some("/h/.local/lib/wireshark/extcap"));
        assert_eq!(Folders::parse(&new, false), personal);
        assert_eq!(Folders::parse(&new, true), system);
    }
}
