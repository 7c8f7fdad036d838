//! Names of numbers, as lines of a table: `= NAME NUMBER WORD NUMBER WORD ...`. An argument of type `int(NAME)` is said by the word of its number. A row that stands
//! for itself, as a log has it, has the words in it: `int(NAME:NUMBER=WORD;NUMBER=WORD)`.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Words of the numbers of one name; a number without a word is said as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(Vec<(i64, String)>);

impl Words {
    pub fn of(&self, number: i64) -> Option<&str> {
        self.0.binary_search_by_key(&number, |w| w.0).ok().map(|i| self.0[i].1.as_str())
    }

    fn add(&mut self, number: &str, word: &str) -> Result<(), String> {
        let number: i64 = number.parse().map_err(|_| format!("`{number}` is no number that has a word"))?;
        if word.contains([',', ';', '(', ')']) {
            return Err(format!("`{word}` is no word: it has one of , ; ( )"));
        }
        match self.0.binary_search_by_key(&number, |w| w.0) {
            Ok(i) => word.clone_into(&mut self.0[i].1),
            Err(i) => self.0.insert(i, (number, word.into())),
        }
        Ok(())
    }

    /// Of `NUMBER=WORD;NUMBER=WORD`.
    pub(super) fn parse(text: &str) -> Result<Words, String> {
        let mut words = Words::default();
        for one in text.split(';') {
            let (number, word) = one.split_once('=').ok_or_else(|| format!("`{one}` is not NUMBER=WORD"))?;
            words.add(number, word)?;
        }
        Ok(words)
    }
}

/// All names that a table has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<String, Words>);

impl Names {
    /// Takes a line without its `=`; several lines may be of one name.
    pub(super) fn line(&mut self, line: &str) -> Result<(), String> {
        let mut all = line.split_whitespace();
        let name = all.next().ok_or("= NAME NUMBER WORD ...: the name is missing")?;
        if name.contains([',', ':', ';', '(', ')', '=']) {
            return Err(format!("`{name}` is no name: it has one of , : ; ( ) ="));
        }
        let words = self.0.entry(name.into()).or_default();
        while let Some(number) = all.next() {
            words.add(number, all.next().ok_or_else(|| format!("{number} has no word"))?)?;
        }
        Ok(())
    }

    /// Those of a text's lines, whatever else it has.
    pub(super) fn in_text(text: &str) -> Names {
        let mut names = Names::default();
        for line in text.lines().filter_map(|l| l.trim().strip_prefix('=')) {
            _ = names.line(line);
        }
        names
    }

    /// The row with the words in it of which it has the names.
    ///
    /// *Errors*: a name that there is not.
    pub(super) fn put_into(&self, line: &str) -> Result<String, String> {
        let mut fields: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let Some(arguments) = fields.get_mut(4) else { return Ok(fields.join(" ")) };
        let mut out = String::new();
        for (i, word) in arguments.split(',').enumerate() {
            out += if i == 0 { "" } else { "," };
            let named = word.strip_suffix(')').and_then(|w| w.rsplit_once('('));
            let Some((kind, name)) = named.filter(|n| !n.1.contains(':')) else {
                out += word;
                continue;
            };
            let words =
                self.0.get(name).ok_or_else(|| format!("`{word}`: no line = {name} NUMBER WORD ..."))?;
            let all: Vec<String> = words.0.iter().map(|(n, word)| format!("{n}={word}")).collect();
            let _ = write!(out, "{kind}({name}:{})", all.join(";"));
        }
        *arguments = out;
        Ok(fields.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;

    #[test]
    fn numbers_that_have_words() {
        let text = "a b f mark n=1:int(door) is {n}\n= door 0 closed 1 open\n= door -1 gone 1 ajar\n";
        let row = parse(text).unwrap().rows.remove(0);
        assert_eq!(row.line, "a b f mark n=1:int(door:-1=gone;0=closed;1=ajar) is {n}");
        let again = Row::parse(&row.line).unwrap();
        assert_eq!(again, row);
        let said = |n: i64| {
            let (at, func, text) = (BootNs(1), FuncId(9), String::new());
            let values = [n as u64, 0, 0, 0];
            let r = ProgramRecord { at, pid: 7, func, stage: Stage::Mark, faults: 0, values, text };
            again.say(None, Some(&r))
        };
        assert_eq!([-1, 0, 1, 2].map(said), ["is gone", "is closed", "is ajar", "is 2"]);
    }

    #[test]
    fn those_of_the_built_in_table_are_everybodys() {
        let row = parse("x y z span s=2:int(wpa-state),r=return:int(eai) {s} {r}").unwrap().rows.remove(0);
        let words = |i: usize, n| row.arguments[i].words.as_ref().and_then(|w| w.of(n));
        assert_eq!((words(0, 9), words(0, 10), words(1, -2)), (Some("COMPLETED"), None, Some("EAI_NONAME")));
        for (line, why) in [
            ("x y z mark n=1:int(nowhere) {n}", "no line = nowhere"),
            ("= n 1", "1 has no word"),
            ("= n one 1", "`one` is no number"),
            ("= n(", "is no name"),
            ("= n 1 a;b", "is no word"),
            ("x y z mark n=1:string(eai) {n}", "no type"),
            ("x y z mark n=1:int(a:b) {n}", "NUMBER=WORD"),
        ] {
            let answer = parse(line).unwrap_err();
            assert!(answer.contains(why), "{line}: {answer}");
        }
    }
}
