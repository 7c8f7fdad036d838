//! `kpat profile record [-p PID]... [--comm NAME]... [--for T | -- CMD]`: the words of a profiler, as those of `kpat record -p profile`.

/// What `kpat record` would be called with; as it was typed if it is not that. `words`: with the program's own name.
pub fn translated(words: Vec<String>) -> Vec<String> {
    let commands: Vec<usize> = (1..words.len()).filter(|i| !words[*i].starts_with('-')).take(2).collect();
    let [profile, record] = commands[..] else { return words };
    if words[profile] != "profile" || words[record] != "record" || record != profile + 1 {
        return words;
    }
    let mut all: Vec<String> = words[..profile].to_vec();
    all.extend(["record".into(), "--profile".into(), "profile".into()]);
    let mut rest = words[record + 1..].iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            all.push(word.clone());
            all.extend(rest.cloned());
            return all;
        }
        let (flag, value) =
            word.split_once('=').map_or((word.as_str(), None), |(f, v)| (f, Some(v.to_owned())));
        let glued = word.strip_prefix("-p").filter(|v| !v.is_empty()).map(str::to_owned);
        let (what, value) = match (flag, glued) {
            ("--pid" | "-p", None) => ("pid", value),
            (_, Some(number)) => ("pid", Some(number)),
            ("--comm", _) => ("comm", value),
            ("--cgroup", _) => ("cgroup", value),
            ("--container", _) => ("container", value),
            ("--user", _) => ("user", value),
            _ => {
                all.push(word.clone());
                continue;
            }
        };
        all.push("--only".into());
        // Without a value the parser says what is missing.
        all.extend(value.or_else(|| rest.next().cloned()).map(|v| format!("{what}={v}")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::translated;

    #[test]
    fn words_of_a_profiler() {
        let of = |line: &str| translated(line.split(' ').map(String::from).collect()).join(" ");
        assert_eq!(
            of("kpat profile record -p 12 --for 5s"),
            "kpat record --profile profile --only pid=12 --for 5s"
        );
        assert_eq!(
            of("kpat -q profile record --pid=1 -p2 --comm nginx --user www --rate 99 -o x.kbl"),
            "kpat -q record --profile profile --only pid=1 --only pid=2 --only comm=nginx --only user=www --rate 99 -o x.kbl"
        );
        assert_eq!(of("kpat profile record -- sh -p 3"), "kpat record --profile profile -- sh -p 3");
        for other in
            ["kpat profile x.kpat --pid 3", "kpat record -p profile", "kpat profile --pid 3 record", "kpat"]
        {
            assert_eq!(of(other), other);
        }
    }
}
