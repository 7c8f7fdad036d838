//! How each command is used: for the manual and the end of `--help`. A test parses every line of it.

use clap::Command;

/// Command, what is typed, what for.
type Example = (&'static str, &'static str, &'static str);

const EXAMPLES: &[Example] = &[
    (
        "",
        "kpat record -o X.kbl -f 'tcp port 443' --sniff eth0 --for 10s",
        "record, and capture the wire at the same time",
    ),
    ("", "kpat integrate X.kbl X.pcapng", "join both: X.kpat"),
    ("", "kpat packets X.kpat dropped", "which packets were dropped"),
    ("doctor", "kpat doctor", "which mechanisms work here, and why others do not"),
    ("probes", "kpat probes -p tcp", "what the profile tcp probes on this kernel"),
    ("probes", "kpat probes --stats --json", "how many functions handle packets, for a script"),
    ("record", "kpat record -o X.kbl -f 'icmp or arp' --for 10s", "ten seconds of two protocols"),
    (
        "record",
        "kpat record -o X.kbl -i eth0 --sniff eth0 -- ping -c 3 192.0.2.1",
        "while a command runs, with the wire",
    ),
    (
        "record",
        "kpat record -o X.kbl --netns router --sniff router:r0 --sniff router:r1",
        "in a network namespace, until Ctrl-C",
    ),
    (
        "record",
        "kpat record -o X.kbl --memory 256M --last 5s --dump-on-drop=NO_SOCKET",
        "a flight recorder that writes when something is dropped",
    ),
    ("record", "kpat record -p app -o app.kbl -f 'tcp port 80'", "what applications ask of their sockets"),
    ("ctl", "kpat ctl status", "what a running recording does and has lost"),
    ("ctl", "kpat ctl off 'nf_*'", "stop logging these functions"),
    ("collect", "kpat collect send /var/spool/kpat http://127.0.0.1:9436", "send finished logs"),
    ("record", "kpat record -p path,programs -o X.kbl", "packets, and what programs say of their work"),
    ("guest", "kpat guest list", "the guests of this host"),
    ("guest", "kpat guest doctor web1", "what works for the guest web1, and what it costs"),
    (
        "guest",
        "kpat guest symbols web1 'tcp_v4_*' 0xffffffff81000010",
        "functions by name, and what is at an address",
    ),
    (
        "guest",
        "kpat guest probe web1 '__x64_sys_openat sys2:str ret' -n 20",
        "who opens which file in the guest, and what came of it",
    ),
    ("guest", "kpat guest processes web1 --hidden", "processes that the guest's own ps may not show"),
    ("integrate", "kpat integrate X.kbl X.pcapng", "one recording and its capture"),
    ("integrate", "kpat integrate X.kbl --log app.log", "with the lines of a log file as events"),
    (
        "integrate",
        "kpat integrate a.kbl b.kbl wire.pcapng -o both.kpat",
        "two devices and the wire between them",
    ),
    ("info", "kpat info X.kpat", "what is in a log and how far to trust it"),
    ("info", "kpat info X.kbl --strict", "exit with 3 if anything was lost"),
    ("packets", "kpat packets X.kpat tcp port 80 dropped", "dropped packets of one port"),
    ("packets", "kpat packets X.kpat 'path > 1ms' --sort path --utc", "the slowest, with the time of day"),
    ("packets", "kpat packets X.kpat after 10:22:30 before 10:22:31", "one second, by the wall clock (UTC)"),
    ("packet", "kpat packet 42 X.kpat", "all about one packet"),
    ("packet", "kpat packet --frame X.pcapng:17 X.kpat", "the packet of a frame, by its number in Wireshark"),
    ("frames", "kpat frames X.kpat --unmatched", "frames that match no packet"),
    ("functions", "kpat functions X.kpat 'ip_*' --sort self", "functions with these names, by self time"),
    ("function", "kpat function ip_rcv X.kpat --slower-than 10us", "slow calls of one function"),
    ("time", "kpat time X.kpat icmp", "where the time of these packets went"),
    ("time", "kpat time before.kpat --compare after.kpat", "what a change did"),
    ("phases", "kpat phases X.kpat icmp", "the path of packets through this host, in phases"),
    ("phases", "kpat phases X.kpat --svg phases.svg --html phases.html", "as a picture and as a page"),
    ("app", "kpat app X.kpat", "sockets, and what they waited for"),
    ("app", "kpat app X.kpat --socket 3 --series --bins 20", "one socket over time"),
    (
        "profile",
        "kpat profile X.kpat",
        "whom the CPUs worked for, and whose time it took (record -p profile)",
    ),
    ("profile", "kpat profile X.kpat --pid 4711 --json", "one process, for a script"),
    ("handover", "kpat handover X.kpat", "every time without a network: what kind, how long, mostly why"),
    ("handover", "kpat handover X.kpat 2", "the second one, phase by phase, with what made each long"),
    ("handover", "kpat handover X.kpat 2 --marks", "what was seen: each mark with its record or frame"),
    ("handover", "kpat handover X.kpat --svg h.svg --html h.html", "picture of the longest, page of all"),
    ("handover", "kpat handover A.kpat B.kpat", "statistics over two recordings"),
    ("why", "kpat why X.kpat", "why the connection that wrote most is slow"),
    ("why", "kpat why 4393 X.kpat", "the same for this socket (kpat app lists sockets)"),
    ("why", "kpat why --packet 42 X.kpat", "the connection of a packet"),
    ("events", "kpat events X.kpat --kind drop,retransmit", "drops and retransmissions"),
    (
        "export",
        "kpat export X.kpat --to pcapng -o X.annotated.pcapng",
        "for Wireshark, with what the kernel did",
    ),
    ("export", "kpat export X.kpat --to perfetto -o X.pftrace dropped", "dropped packets, for Perfetto"),
    ("view", "kpat view X.kpat", "all views, in the browser"),
    ("view", "kpat view X.kpat --port 7801", "for `ssh -L 7801:127.0.0.1:7801 HOST`"),
    ("sql", "kpat sql X.kpat 'select verdict, count(*) from packet group by verdict'", "a query of your own"),
    ("sql", "kpat sql X.kpat --tables packet", "the columns of a table, with units"),
    ("wireshark", "kpat wireshark install", "the dissector and the capture interface, for this user"),
    ("completion", "kpat completion bash", "to be sourced, or put where the shell looks for it"),
    ("man", "kpat man packets", "one page, as roff: `| man -l -` shows it"),
];

/// Of a command, by its words without `kpat`: what is typed, and what for.
pub fn of(command: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    EXAMPLES.iter().filter(move |e| e.0 == command).map(|e| (e.1, e.2))
}

/// The commands with their examples at the end of `--help`.
pub fn with_examples(command: Command) -> Command {
    command.mut_subcommands(|sub| {
        let mut text = String::from("Examples:");
        for (line, what_for) in of(sub.get_name()) {
            text += &format!("\n  {line}\n      {what_for}");
        }
        if text.ends_with(':') {
            return sub;
        }
        match sub.get_after_help().map(ToString::to_string) {
            Some(more) => sub.after_long_help(format!("{more}\n\n{text}")),
            None => sub.after_long_help(text),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Words as a shell would make them; there are no escapes in the examples.
    fn words(line: &str) -> Vec<String> {
        let mut out = Vec::new();
        for (i, part) in line.split('\'').enumerate() {
            if i % 2 == 1 {
                out.push(part.to_owned());
            } else {
                out.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        out
    }

    #[test]
    fn every_example_is_understood() {
        for (command, line, _) in EXAMPLES {
            let words = words(line);
            assert!(command.is_empty() || words[1] == *command, "{line}");
            if let Err(e) = Cli::command().try_get_matches_from(&words) {
                panic!("{line}: {e}");
            }
        }
    }

    #[test]
    fn every_command_has_one() {
        for command in Cli::command().get_subcommands() {
            assert!(of(command.get_name()).next().is_some(), "{}", command.get_name());
        }
    }
}
