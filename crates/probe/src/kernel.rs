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

/// Text symbols of the kernel and its modules. There are more than a hundred thousand, and a recorder keeps them: so the names lie in one text.
pub struct Symbols {
    text: String,
    /// By address, those of one address by name.
    by_address: Vec<Symbol>,
    /// Places in `by_address`: by name, those of one name by address.
    by_name: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Symbol {
    addr: u64,
    /// Where its name is in the text.
    from: u32,
    bytes: u32,
}

impl Symbols {
    pub fn running() -> Symbols {
        let text = std::fs::read("/proc/kallsyms").unwrap_or_default();
        Symbols::parse(&String::from_utf8_lossy(&text))
    }

    /// Functions only, of what /proc/kallsyms has.
    pub fn parse(kallsyms: &str) -> Symbols {
        Symbols::of(kallsyms.lines().filter_map(|line| {
            let mut w = line.split_whitespace();
            let (addr, kind, name) = (w.next()?, w.next()?, w.next()?);
            let is_function = matches!(kind, "t" | "T" | "w" | "W");
            is_function.then(|| (u64::from_str_radix(addr, 16).unwrap_or(0), name))
        }))
    }

    /// Of address and name.
    pub fn of<'a>(symbols: impl IntoIterator<Item = (u64, &'a str)>) -> Symbols {
        let (mut text, mut all) = (String::new(), Vec::new());
        for (addr, name) in symbols {
            let Ok(from) = u32::try_from(text.len()) else { break };
            all.push(Symbol { addr, from, bytes: name.len() as u32 });
            text.push_str(name);
        }
        text.shrink_to_fit();
        all.shrink_to_fit();
        let mut s = Symbols { text, by_address: all, by_name: Vec::new() };
        let text = &s.text;
        s.by_address.sort_by(|a, b| (a.addr, name(text, *a)).cmp(&(b.addr, name(text, *b))));
        let mut by_name: Vec<u32> = (0..s.by_address.len() as u32).collect();
        by_name.sort_by_key(|i| (name(text, s.by_address[*i as usize]), *i));
        s.by_name = by_name;
        s
    }

    fn name(&self, s: Symbol) -> &str {
        name(&self.text, s)
    }

    /// In order of address.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_address.iter().map(|s| self.name(*s))
    }

    fn of_name(&self, wanted: &str) -> &[u32] {
        let of = |i: &u32| self.name(self.by_address[*i as usize]);
        let from = self.by_name.partition_point(|i| of(i) < wanted);
        let count = self.by_name[from..].partition_point(|i| of(i) == wanted);
        &self.by_name[from..from + count]
    }

    pub fn count(&self, name: &str) -> usize {
        self.of_name(name).len()
    }

    pub fn address(&self, name: &str) -> u64 {
        self.of_name(name).first().map_or(0, |i| self.by_address[*i as usize].addr)
    }

    /// Where a function lies, and how many bytes there are up to the next symbol: none where it is not there, or addresses are hidden.
    pub fn place(&self, name: &str) -> Option<(u64, u64)> {
        let from = self.address(name);
        let next = self.by_address.partition_point(|s| s.addr <= from);
        (from != 0).then_some((from, self.by_address.get(next)?.addr - from))
    }

    /// The same for addresses in the kernel's own text, which stays as it is: not of modules, trampolines and programs, which come and go.
    pub fn resolve_own(&self, addr: u64) -> Option<String> {
        let end = self.address("_etext");
        (self.by_address.first().is_some_and(|s| s.addr <= addr) && addr < end).then(|| self.resolve(addr))?
    }

    /// `function+0x12`, None where addresses are hidden or foreign.
    pub fn resolve(&self, addr: u64) -> Option<String> {
        let i = self.by_address.partition_point(|s| s.addr <= addr).checked_sub(1)?;
        let s = self.by_address[i];
        let off = addr - s.addr;
        if s.addr == 0 || off > 1 << 20 {
            return None;
        }
        let name = self.name(s);
        Some(if off == 0 { name.to_owned() } else { format!("{name}+{off:#x}") })
    }
}

fn name(text: &str, s: Symbol) -> &str {
    &text[s.from as usize..(s.from + s.bytes) as usize]
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
        let s = Symbols::parse("30 t twice\n10 T b\n20 t twice\n20 t also\n10 W a\nx\n");
        assert_eq!(s.names().collect::<Vec<_>>(), ["a", "b", "also", "twice", "twice"]);
        assert_eq!(
            (s.count("twice"), s.address("twice"), s.address("a"), s.address("none")),
            (2, 0x20, 0x10, 0)
        );
        assert_eq!(s.resolve(0x2f).as_deref(), Some("twice+0xf"), "of one address the last name");
        assert_eq!(Symbols::parse("").address("a"), 0);
    }
}
