//! What was typed and is not understood: one sentence, in the style of every other error, with what was probably meant.

use crate::cli::Cli;
use crate::render::clean;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

/// The sentence for an error of the command line. `words`: all that was typed behind `kpat`.
pub fn sentence(e: &clap::Error, words: &[String]) -> String {
    let command = words.iter().find(|w| !w.starts_with('-')).map_or("", String::as_str);
    let wrong = match e.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) if e.kind() == ErrorKind::UnknownArgument => wrong.as_str(),
        _ => "",
    };
    let meant = match e.kind() {
        ErrorKind::InvalidSubcommand => no_command(e, words),
        ErrorKind::MissingRequiredArgument => words_of_it(e, words),
        _ => (!wrong.is_empty()).then(|| meant(command, wrong, words)).flatten(),
    };
    let text = meant.unwrap_or_else(|| logged(&e.render().to_string()));
    format!("{text} (see: {} --help)", known(words))
}

/// The command that is none, and the nearest of those that are. The parser's own proposal has others, too.
fn no_command(e: &clap::Error, words: &[String]) -> Option<String> {
    let Some(ContextValue::String(wrong)) = e.get(ContextKind::InvalidSubcommand) else { return None };
    let all = Cli::command();
    let above = way(words, &all).last().unwrap_or(&all);
    let names: Vec<&str> = above.get_subcommands().map(Command::get_name).collect();
    let near = kpat_query::nearest(wrong, names.iter().copied());
    let meant = near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
    Some(format!("there is no command `{}`{meant}", clean(wrong)))
}

/// What a command takes whose words are more than a list of arguments ("SOCKET and a log, or a log alone").
fn words_of_it(e: &clap::Error, words: &[String]) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = e.get(ContextKind::InvalidArg) else { return None };
    if !missing.iter().any(|m| ["> [", "> <"].iter().any(|two| m.contains(two))) {
        return None;
    }
    let all = Cli::command();
    let usage = way(words, &all).last()?.clone().render_usage().to_string();
    let first = usage.lines().next()?.trim_start_matches("Usage: ").replace("[OPTIONS] ", "");
    Some(format!("arguments are missing: {first}"))
}

/// The command that was typed, `kpat collect send` for example, as far as there is such a one.
fn known(words: &[String]) -> String {
    let all = Cli::command();
    let names: Vec<&str> = way(words, &all).map(|c| c.get_name()).collect();
    ["kpat"].into_iter().chain(names).collect::<Vec<_>>().join(" ")
}

/// What was typed, as far as there are such commands, from `all` downwards.
fn way<'a>(words: &[String], all: &'a Command) -> impl Iterator<Item = &'a Command> {
    words.iter().filter(|w| !w.starts_with('-')).scan(all, |command, word| {
        *command = command.find_subcommand(word)?;
        Some(*command)
    })
}

/// What clap says in lines, in one; without its proposal to pass an unknown flag as a value, which would run it as a command.
fn logged(rendered: &str) -> String {
    let before = rendered.split("\nUsage:").next().unwrap_or(rendered);
    let before = before.split("\nFor more information").next().unwrap_or(before);
    let mut text = String::new();
    for line in before.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let line = line.strip_prefix("error: ").unwrap_or(line);
        let (line, is_tip) = line.strip_prefix("tip: ").map_or((line, false), |tip| (tip, true));
        if is_tip && (line.starts_with("to pass ") || is_far(&text, line)) {
            continue;
        }
        // What is missing, or possible, stands in lines of its own.
        let between = match () {
            () if text.is_empty() => "",
            () if text.ends_with(':') => " ",
            () if line.starts_with('[') => " ",
            () => "; ",
        };
        text += between;
        text += line;
    }
    clean(&text)
}

/// Proposes names (in quotes), of which none is like the one complained of (in quotes as well).
fn is_far(complaint: &str, tip: &str) -> bool {
    let quoted = |text: &'_ str| -> Vec<String> {
        text.split('\'').skip(1).step_by(2).map(|name| name.trim_start_matches('-').to_owned()).collect()
    };
    let (wrong, near) = (quoted(complaint), quoted(tip));
    let Some(wrong) = wrong.first().filter(|_| !near.is_empty()) else { return false };
    kpat_query::nearest(wrong, near.iter().map(String::as_str)).is_none()
}

/// Says that the log stands first, if one is named behind something else. `words`: as for [`sentence`].
pub fn log_first(words: &[String]) -> Option<String> {
    let mut words = words.iter().filter(|w| !w.starts_with('-'));
    let command = words.next()?;
    let is_log = |w: &&String| w.ends_with(".kpat");
    let other = words.next().filter(|w| !is_log(w))?;
    let log = words.find(is_log)?;
    Some(format!("the log stands first: kpat {} {} '{}'", clean(command), clean(log), clean(other)))
}

/// What users of neighbouring tools mean by it.
fn meant(command: &str, wrong: &str, words: &[String]) -> Option<String> {
    let number =
        wrong.strip_prefix('-').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if number {
        return Some(format!("`{wrong}`: numbers must not be negative"));
    }
    if command != "record" {
        let takes = |c: &Command| c.get_positionals().any(|a| a.get_id() == "expression");
        let filters = || Cli::command().find_subcommand(command).is_some_and(takes);
        if matches!(wrong, "-f" | "-Y" | "--filter") && filters() {
            return Some(format!(
                "{command} has no {wrong}: a filter stands behind the log, kpat {command} X.kpat 'udp and len > 100'"
            ));
        }
        return if wrong.ends_with(".kpat") { log_first(words) } else { None };
    }
    match wrong {
        "-w" => {
            Some("record has no -w: use -o X.kbl for the log, and --sniff IF to capture the wire, too".into())
        }
        "-r" => Some(
            "record does not read captures: `kpat integrate X.kbl WIRE.pcapng` joins a capture with a log"
                .into(),
        ),
        "-c" | "--count" => {
            Some(format!("record has no {wrong}: use --for 10s, give a command after --, or press Ctrl-C"))
        }
        "-s" => Some(
            "record has no -s: --snaplen N sets how many bytes of a frame the captures of --sniff keep"
                .into(),
        ),
        "-n" | "-nn" | "-e" | "-v" => Some(format!(
            "record has no {wrong}; --print prints packets while they are recorded, `kpat packets X.kpat` afterwards"
        )),
        _ if wrong.starts_with('-') => None,
        _ => {
            // tcpdump's filter, which stands without a flag.
            let filter: Vec<&str> = words
                .iter()
                .map(String::as_str)
                .skip_while(|w| *w != wrong)
                .take_while(|w| !w.starts_with('-'))
                .collect();
            Some(format!(
                "unexpected `{}`: give a filter as -f '{}', and a command to run after --",
                clean(wrong),
                clean(&filter.join(" "))
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant() {
        for (typed, says) in [
            ("record -i lo tcp port 80", "-f 'tcp port 80'"),
            ("record tcp port 80 -i lo", "-f 'tcp port 80'"),
            ("record -w foo.pcap", "-o X.kbl"),
            ("record -c 10", "--for 10s"),
            ("packets -n -5 X.kpat", "not be negative"),
            ("packets --form 1s X.kpat", "'--from'"),
            ("packets X.kpat -f udp", "a filter stands behind the log, kpat packets X.kpat '"),
            ("why X.kpat -f udp", "'-f'"),
            ("packet X.kpat --fram 3", "'--frame'"),
            ("events drop X.kpat", "the log stands first: kpat events X.kpat 'drop'"),
            ("frob", "`frob` (see"),
            ("recrod", "did you mean `record`?"),
            ("wy X.kpat", "did you mean `why`?"),
            ("handovers X.kpat", "`handovers`; did you mean `handover`?"),
            ("collect lst", "did you mean `list`? (see: kpat collect --help)"),
            ("frobnicate", "no command `frobnicate` (see"),
            ("packets", "<X.kpat>"),
            ("why", "arguments are missing: kpat why [SOCKET] <X.kpat> (see"),
            ("function", "arguments are missing: kpat function <NAME> <X.kpat> (see"),
            ("packet", "arguments are missing: kpat packet <ID> <X.kpat> (see"),
            ("packets X.kpat --sort size", "time, path, kernel"),
            ("record --for ten", "is no unit of time"),
            ("events X.kpat --from yesterday", "`yesterday` is not a time"),
            ("collect frob", "(see: kpat collect --help)"),
            ("collect --json send spool", "<TARGET> (see: kpat collect send --help)"),
            ("frob collect", "(see: kpat --help)"),
        ] {
            let words: Vec<String> = typed.split(' ').map(str::to_owned).collect();
            let all = std::iter::once("kpat".to_owned()).chain(words.iter().cloned());
            let e = Cli::command().try_get_matches_from(all).unwrap_err();
            let reported = sentence(&e, &words);
            assert!(reported.contains(says), "{typed}: {reported}");
            assert!(
                !reported.contains('\n')
                    && !reported.contains("tip:")
                    && !reported.contains("error:")
                    && !reported.contains("-- -"),
                "{typed}: {reported}"
            );
        }
    }
}
