//! Facts about the running kernel that BTF does not hold: which functions can be traced, where symbols are, how it was
//! configured. "Cannot be listed" is a normal answer on locked-down kernels, not an error.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

pub fn tracefs() -> Option<&'static str> {
    ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .into_iter()
        .find(|p| std::path::Path::new(p).join("available_events").exists())
}

/// What ftrace can trace: name to how often that name occurs. None: cannot be listed here.
pub fn traceable() -> Option<HashMap<String, u32>> {
    let f = std::fs::File::open(format!("{}/available_filter_functions", tracefs()?)).ok()?;
    let mut out = HashMap::with_capacity(70_000);
    for line in BufReader::new(f).split(b'\n') {
        let line = line.ok()?;
        let end = line.iter().position(|c| *c == b' ' || *c == b'\t').unwrap_or(line.len());
        *out.entry(String::from_utf8_lossy(&line[..end]).into_owned()).or_insert(0) += 1;
    }
    (!out.is_empty()).then_some(out)
}

/// Text symbols of the kernel and its modules, sorted by address.
pub struct Symbols {
    /// (address, name, module or empty)
    sorted: Vec<(u64, String, String)>,
    by_name: HashMap<String, Vec<usize>>,
}

impl Symbols {
    pub fn running() -> Symbols {
        let text = std::fs::read("/proc/kallsyms").unwrap_or_default();
        Symbols::parse(&String::from_utf8_lossy(&text))
    }

    pub fn parse(text: &str) -> Symbols {
        let mut sorted = Vec::with_capacity(100_000);
        for line in text.lines() {
            let mut w = line.split_whitespace();
            let (Some(addr), Some(kind), Some(name)) = (w.next(), w.next(), w.next()) else { continue };
            if !matches!(kind, "t" | "T" | "w" | "W") {
                continue;
            }
            let module = w.next().map_or(String::new(), |m| m.trim_matches(['[', ']']).to_string());
            sorted.push((u64::from_str_radix(addr, 16).unwrap_or(0), name.to_string(), module));
        }
        Symbols::of(sorted)
    }

    /// Of address, name, module or empty; functions only.
    pub fn of(symbols: impl IntoIterator<Item = (u64, String, String)>) -> Symbols {
        let mut sorted: Vec<_> = symbols.into_iter().collect();
        sorted.sort();
        let mut by_name: HashMap<String, Vec<usize>> = HashMap::with_capacity(sorted.len());
        for (i, s) in sorted.iter().enumerate() {
            by_name.entry(s.1.clone()).or_default().push(i);
        }
        Symbols { sorted, by_name }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sorted.iter().map(|s| s.1.as_str())
    }

    pub fn count(&self, name: &str) -> usize {
        self.by_name.get(name).map_or(0, Vec::len)
    }

    pub fn address(&self, name: &str) -> u64 {
        self.by_name.get(name).and_then(|v| v.first()).map_or(0, |i| self.sorted[*i].0)
    }

    /// The same for addresses in the kernel's own text, which stays as it is: not of modules, trampolines and programs, which come and go.
    pub fn resolve_own(&self, addr: u64) -> Option<String> {
        let end = self.address("_etext");
        (self.sorted.first().is_some_and(|s| s.0 <= addr) && addr < end).then(|| self.resolve(addr))?
    }

    /// `function+0x12`, None where addresses are hidden or foreign.
    pub fn resolve(&self, addr: u64) -> Option<String> {
        let i = self.sorted.partition_point(|s| s.0 <= addr).checked_sub(1)?;
        let s = &self.sorted[i];
        let off = addr - s.0;
        if s.0 == 0 || off > 1 << 20 {
            return None;
        }
        Some(if off == 0 { s.1.clone() } else { format!("{}+{off:#x}", s.1) })
    }
}

/// The kernel's configuration: CONFIG_X to y, m or a value. Empty if it is unavailable.
pub fn config() -> HashMap<String, String> {
    let release = read_line("/proc/sys/kernel/osrelease");
    let mut text = String::new();
    if let Ok(out) = std::process::Command::new("zcat").arg("/proc/config.gz").output()
        && out.status.success()
    {
        text = String::from_utf8_lossy(&out.stdout).into_owned();
    }
    for path in [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")] {
        if text.is_empty()
            && let Ok(mut f) = std::fs::File::open(path)
        {
            let _ = f.read_to_string(&mut text);
        }
    }
    text.lines()
        .filter_map(|l| l.strip_prefix("CONFIG_")?.split_once('='))
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect()
}

pub fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// Lockdown mode in force: "none", "integrity", "confidentiality", or empty where unknown.
pub fn lockdown() -> String {
    let text = read_line("/sys/kernel/security/lockdown");
    text.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']')).unwrap_or("").to_string()
}

/// CPUs that may ever come up: per-CPU things need a place for each.
pub fn possible_cpus() -> usize {
    let text = read_line("/sys/devices/system/cpu/possible");
    text.split(',')
        .filter_map(|r| r.split('-').next_back()?.trim().parse::<usize>().ok())
        .max()
        .map_or(1, |m| m + 1)
}

/// Numbers of the processes that there are.
pub fn processes() -> impl Iterator<Item = u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_resolve() {
        let s = Symbols::parse(
            "ffffffff81000000 T _stext\nffffffff81000100 t ip_rcv\nffffffff81000200 D data\nffffffffc0000000 t veth_xmit\t[veth]\n",
        );
        assert_eq!(s.resolve(0xffffffff81000112).as_deref(), Some("ip_rcv+0x12"));
        assert_eq!(s.resolve(0xffffffffc0000000).as_deref(), Some("veth_xmit"));
        assert_eq!(s.resolve(0xffffffffd0000000), None);
        assert_eq!(s.count("ip_rcv"), 1);
        assert_eq!(s.count("data"), 0);
    }
}
