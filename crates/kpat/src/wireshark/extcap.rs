//! kpat as Wireshark's capture interfaces: what extcap asks on the command line, and what it wants to hear.
//!
//! Wireshark starts the link that `kpat wireshark install` made, first to learn interfaces, link types and options, then to
//! capture into a pipe. The answers are extcap's own sentences, so this has its own reading of the command line.

use super::live;
use crate::output::Output;
use anyhow::{Context, bail};
use kpat_probe::mechanism::Mechanism;
use kpat_probe::netlink;
use kpat_probe::profile::Detail;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

const LOCAL: &str = "kpat";
const REMOTE: &str = "kpat-ssh";
const REPLAY: &str = "kpat-replay";

/// Flags that stand alone.
const ALONE: [&str; 6] = [
    "--extcap-interfaces",
    "--extcap-dlts",
    "--extcap-config",
    "--extcap-cleanup-postkill",
    "--capture",
    "--sudo",
];

/// Was this program started by Wireshark?
pub fn is_asked(args: &[String]) -> bool {
    let capture = args.iter().any(|a| a == "--capture") && args.iter().any(|a| a.starts_with("--fifo"));
    capture || args.iter().any(|a| a.starts_with("--extcap-"))
}

/// The words, flags without value as an empty one.
fn parse(args: &[String]) -> HashMap<String, String> {
    let mut out = HashMap::new();
    let mut words = args.iter().peekable();
    while let Some(word) = words.next() {
        if let Some((name, value)) = word.split_once('=').filter(|(n, _)| n.starts_with("--")) {
            out.insert(name.to_owned(), value.to_owned());
        } else if ALONE.contains(&word.as_str()) {
            out.insert(word.clone(), String::new());
        } else if word.starts_with("--") {
            // Wireshark gives an option that was left empty without a value, or not at all.
            let value = words.next_if(|w| !w.starts_with("--")).cloned().unwrap_or_default();
            out.insert(word.clone(), value);
        }
    }
    out
}

pub fn run(args: &[String], out: &Output) -> anyhow::Result<ExitCode> {
    let reported = parse(args);
    let interface = reported.get("--extcap-interface").map_or("", String::as_str);
    let text = if reported.contains_key("--extcap-interfaces") {
        interfaces()
    } else if reported.contains_key("--extcap-dlts") {
        // The stream says itself what its frames are; this is what a filter is compiled for.
        "dlt {number=1}{name=EN10MB}{display=Ethernet}\n".to_owned()
    } else if reported.contains_key("--extcap-config") {
        match interface {
            LOCAL => local_options(),
            REMOTE => remote_options(),
            REPLAY => replay_options(),
            other => bail!("there is no interface {other}"),
        }
    } else if reported.contains_key("--capture") {
        return capture(interface, &reported, out);
    } else {
        String::new()
    };
    out.raw(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn interfaces() -> String {
    format!(
        "extcap {{version={}}}{{display=kpat}}\n\
         interface {{value={LOCAL}}}{{display=kpat: local device with kernel path}}\n\
         interface {{value={REMOTE}}}{{display=kpat: remote device under test over ssh}}\n\
         interface {{value={REPLAY}}}{{display=kpat: an integrated log}}\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// Text within extcap's braces.
fn within(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || "{}=".contains(c) { ' ' } else { c }).collect()
}

struct Options {
    text: String,
    number: u32,
}

impl Options {
    fn arg(&mut self, call: &str, display: &str, kind: &str, more: &str) {
        let n = self.number;
        self.number += 1;
        let _ = writeln!(
            self.text,
            "arg {{number={n}}}{{call={call}}}{{display={display}}}{{type={kind}}}{more}"
        );
    }

    /// A value of the option before.
    fn value(&mut self, value: &str, display: &str, default: bool) {
        let n = self.number - 1;
        let (value, display) = (within(value), within(display));
        let _ = writeln!(
            self.text,
            "value {{arg={n}}}{{value={value}}}{{display={display}}}{{default={default}}}"
        );
    }

    fn what_to_record(&mut self) {
        self.arg(
            "--profile",
            "Functions",
            "selector",
            "{tooltip=which functions of the kernel are recorded}{group=Recording}",
        );
        for (name, display) in [
            ("path", "path: what moves a packet"),
            ("router", "router: and what decides about it"),
            ("tcp", "tcp"),
            ("app", "app: what applications ask for"),
            ("all", "all that take a packet"),
            ("none", "none: tracepoints only"),
        ] {
            self.value(name, display, name == "path");
        }
        self.arg("--detail", "Detail", "selector", "{tooltip=how much of a packet's way}{group=Recording}");
        self.value("auto", "as suits the functions", true);
        for d in Detail::ALL {
            self.value(d.name(), d.name(), false);
        }
        self.arg(
            "--mechanism",
            "Mechanism",
            "selector",
            "{tooltip=how functions are probed}{group=Recording}",
        );
        self.value("auto", "the best that works there", true);
        for m in Mechanism::ALL {
            self.value(m.name(), m.name(), false);
        }
        self.arg(
            "--filter",
            "Filter",
            "string",
            "{tooltip=only these packets are followed through the kernel, in the syntax of tcpdump}{group=Recording}",
        );
        self.arg(
            "--duration",
            "Stop after",
            "string",
            "{tooltip=for example 30s; empty: until it is stopped}{group=Recording}",
        );
    }
}

fn local_options() -> String {
    let mut o = Options { text: String::new(), number: 0 };
    o.arg(
        "--interface",
        "Interface",
        "selector",
        "{tooltip=where frames are captured}{required=true}{group=Capture}",
    );
    for (i, name) in interfaces_here().iter().enumerate() {
        o.value(name, name, i == 0);
    }
    o.what_to_record();
    o.text
}

/// Interfaces that may be captured at, those that are up first; then NETNS:IF of the namespaces that have a name.
fn interfaces_here() -> Vec<String> {
    let of = |netns: &netlink::NetnsRef| {
        let mut names: Vec<String> =
            netlink::devices(netns).unwrap_or_default().into_iter().map(|d| d.name).collect();
        names.sort();
        names.dedup();
        names
    };
    let up = |n: &String| {
        std::fs::read_to_string(format!("/sys/class/net/{n}/operstate")).is_ok_and(|s| s.trim() == "up")
    };
    let mut all = netlink::current_netns().map(|n| of(&n)).unwrap_or_default();
    all.sort_by_key(|n| (n == "lo", !up(n), n.clone()));
    all.push("any".to_owned());
    for netns in netlink::named_netns() {
        if let Some(name) = &netns.name {
            all.extend(of(&netns).iter().filter(|i| *i != "lo").map(|i| format!("{name}:{i}")));
        }
    }
    all
}

fn remote_options() -> String {
    let mut o = Options { text: String::new(), number: 0 };
    o.arg("--host", "Host", "string", "{tooltip=the device under test}{required=true}{group=Server}");
    o.arg("--port", "Port", "unsigned", "{default=22}{range=1,65535}{group=Server}");
    o.arg("--user", "User", "string", "{tooltip=empty: as ssh is configured}{group=Server}");
    o.arg(
        "--key",
        "Private key",
        "fileselect",
        "{mustexist=true}{tooltip=empty: as ssh is configured}{group=Server}",
    );
    o.arg(
        "--sudo",
        "Through sudo",
        "boolflag",
        "{tooltip=the user may run kpat with sudo, without a password}{group=Server}",
    );
    o.arg(
        "--program",
        "kpat there",
        "string",
        "{default=kpat}{tooltip=the program on the device}{group=Server}",
    );
    o.arg(
        "--interface",
        "Interface",
        "string",
        "{tooltip=of the device; any: all}{required=true}{default=any}{group=Capture}",
    );
    o.arg(
        "--netns",
        "Network namespace",
        "string",
        "{tooltip=of the device; empty: that of the login}{group=Capture}",
    );
    o.what_to_record();
    o.text
}

fn replay_options() -> String {
    let mut o = Options { text: String::new(), number: 0 };
    o.arg(
        "--log",
        "Integrated log",
        "string",
        "{tooltip=a directory X.kpat with its capture and .kbl file beside it}{required=true}",
    );
    o.arg("--only", "Capture", "string", "{tooltip=its name, where the log was made from several}");
    o.text
}

fn capture(interface: &str, reported: &HashMap<String, String>, out: &Output) -> anyhow::Result<ExitCode> {
    let fifo = reported.get("--fifo").filter(|f| !f.is_empty()).context("--capture needs --fifo")?;
    let open = || {
        File::options().write(true).open(fifo).with_context(|| format!("cannot write into the pipe {fifo}"))
    };
    match interface {
        LOCAL => {
            let args = live_args(reported)?;
            let file = open()?;
            let pipe = file.as_raw_fd();
            live::stream(&args, &mut BufWriter::with_capacity(1 << 16, file), pipe, out)?;
        }
        REMOTE => over_ssh(reported, open()?)?,
        REPLAY => replay(reported, open()?)?,
        other => bail!("there is no interface {other}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn value<'a>(reported: &'a HashMap<String, String>, name: &str) -> Option<&'a str> {
    reported.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
}

/// What `kpat wireshark stream` takes.
fn live_args(reported: &HashMap<String, String>) -> anyhow::Result<live::Args> {
    let interface = value(reported, "--interface").context("choose an interface in the options")?;
    let filters: Vec<&str> =
        ["--filter", "--extcap-capture-filter"].iter().filter_map(|n| value(reported, n)).collect();
    let filter = match filters[..] {
        [a, b] if a != b => format!("({a}) and ({b})"),
        [a, ..] => a.to_owned(),
        [] => String::new(),
    };
    let duration = value(reported, "--duration").map(crate::render::parse_duration).transpose();
    Ok(live::Args {
        interface: interface.to_owned(),
        netns: value(reported, "--netns").map(str::to_owned),
        profile: value(reported, "--profile").unwrap_or("path").to_owned(),
        detail: value(reported, "--detail")
            .filter(|d| *d != "auto")
            .map(|d| Detail::parse(d).with_context(|| format!("there is no level of detail {d}")))
            .transpose()?,
        mechanism: value(reported, "--mechanism").filter(|m| *m != "auto").map(str::to_owned),
        filter,
        duration_ns: duration.map_err(anyhow::Error::msg)?,
    })
}

/// The same stream, made on the device.
fn over_ssh(reported: &HashMap<String, String>, mut to: File) -> anyhow::Result<()> {
    let host = value(reported, "--host").context("name the device in the options")?;
    let mut ssh = Command::new("ssh");
    // Nobody could answer a question.
    ssh.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
    if let Some(port) = value(reported, "--port") {
        ssh.args(["-p", port]);
    }
    if let Some(key) = value(reported, "--key") {
        ssh.args(["-i", key]);
    }
    if let Some(user) = value(reported, "--user") {
        ssh.args(["-l", user]);
    }
    let mut there: Vec<String> = Vec::new();
    if reported.contains_key("--sudo") && value(reported, "--sudo") != Some("false") {
        there.extend(["sudo".to_owned(), "-n".to_owned()]);
    }
    there.push(value(reported, "--program").unwrap_or("kpat").to_owned());
    there.extend(live_args(reported)?.words());
    let quoted: Vec<String> = there.iter().map(|w| quote(w)).collect();
    ssh.args(["--", host, &quoted.join(" ")]);
    let mut child = ssh
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start ssh; is it installed?")?;
    let mut from = child.stdout.take().context("ssh without an output")?;
    let mut buffer = vec![0; 1 << 16];
    live::until_stopped(&mut child, |_| {
        let n = from.read(&mut buffer)?;
        to.write_all(&buffer[..n])?;
        Ok(n > 0)
    })?;
    let status = child.wait()?;
    // 255 is ssh's own; the words were its, on standard error.
    if !status.success() && !live::is_stopped() {
        bail!("{host}: {} ended with {status}", quoted.join(" "));
    }
    Ok(())
}

/// For the shell at the other end.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// An integrated log, as `kpat export` writes it.
fn replay(reported: &HashMap<String, String>, mut to: File) -> anyhow::Result<()> {
    let log = value(reported, "--log").context("name an integrated log in the options")?;
    let mut own = Command::new(std::env::current_exe()?);
    own.args(["-q", "export", "--to", "pcapng"]).arg(Path::new(log));
    if let Some(only) = value(reported, "--only") {
        own.args(["--only", only]);
    }
    let mut child = own.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut from) = child.stdout.take() {
        std::io::copy(&mut from, &mut to)?;
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{log} could not be read; see the messages above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn wireshark_is_told_from_a_user() {
        for line in
            ["--extcap-interfaces", "--extcap-version=4.0 --extcap-interfaces", "--capture --fifo /tmp/f"]
        {
            assert!(is_asked(&words(line)), "{line}");
        }
        for line in ["packets x.kpat", "export x.kpat --capture w.pcapng", "--help"] {
            assert!(!is_asked(&words(line)), "{line}");
        }
    }

    #[test]
    fn options_become_arguments() {
        let reported = parse(&words(
            "--capture --extcap-interface kpat --fifo /tmp/f --interface r:eth0 --netns --profile router --sudo --filter icmp --extcap-capture-filter udp --duration 5s --mechanism auto --detail spine",
        ));
        let args = live_args(&reported).unwrap();
        assert_eq!((args.interface.as_str(), args.profile.as_str()), ("r:eth0", "router"));
        assert_eq!((args.netns, args.mechanism, args.duration_ns), (None, None, Some(5_000_000_000)));
        assert_eq!((args.filter.as_str(), args.detail), ("(icmp) and (udp)", Some(Detail::Spine)));
        assert!(live_args(&parse(&words("--capture --fifo f"))).is_err());
    }

    #[test]
    fn the_shell_at_the_other_end_sees_words() {
        assert_eq!(quote("udp port 53"), "'udp port 53'");
        assert_eq!(quote("a'b; rm"), "'a'\\''b; rm'");
        assert_eq!(quote("eth0"), "eth0");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn options_stand_in_braces() {
        assert_eq!(within("a}{b=c"), "a  b c");
        let text = local_options();
        assert!(text.contains("{call=--interface}") && text.contains("{value=lo}"), "{text}");
        for line in text.lines() {
            assert_eq!(line.matches('{').count(), line.matches('}').count(), "{line}");
        }
    }
}
