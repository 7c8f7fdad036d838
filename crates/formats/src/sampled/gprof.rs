//! gprof's text, column by column as GNU gprof prints it (hist.c, cg_print.c). A sample does not count calls, so the columns of calls are empty, as gprof
//! leaves them for functions without a count.

use crate::Result;
use crate::names::clean;
use kpat_query::sampled::{Node, Sampled, Time};
use std::collections::HashMap;
use std::io::Write;

const HEAD: &str = "  %   cumulative   self              self     total           \n time   seconds   seconds    calls  Ts/call  Ts/call  name    \n";

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

fn percent(ns: i64, of: i64) -> f64 {
    if of == 0 { 0.0 } else { ns as f64 * 100.0 / of as f64 }
}

/// The flat profile: functions by the time in them. `limit`: so many at most.
pub fn flat(s: &Sampled, limit: usize, out: &mut dyn Write) -> Result<()> {
    let total = s.total_ns();
    let mut all: Vec<(String, Time)> =
        s.functions.iter().zip(s.times()).map(|(f, t)| (clean(&f.label()), t)).collect();
    all.retain(|(_, t)| t.self_ns > 0);
    all.sort_by(|(a, x), (b, y)| (y.self_ns, a).cmp(&(x.self_ns, b)));
    write!(out, "Flat profile:\n\nEach sample counts as {} seconds.\n{HEAD}", seconds(s.period_ns))?;
    let mut sum = 0;
    for (name, t) in all.iter().take(limit) {
        sum += t.self_ns;
        let (share, sum, own) = (percent(t.self_ns, total), seconds(sum), seconds(t.self_ns));
        writeln!(out, "{share:>6.2} {sum:>9.2} {own:>8.2} {0:>8.8} {0:>8.8} {0:>8.8}  {name}", "")?;
    }
    Ok(())
}

/// The call graph: of each function its callers above, what it calls below.
pub fn graph(s: &Sampled, limit: usize, out: &mut dyn Write) -> Result<()> {
    let total = s.total_ns();
    let nodes = s.graph();
    let shown = &nodes[..limit.min(nodes.len())];
    let index: HashMap<u32, usize> = shown.iter().map(|n| n.function).zip(1..).collect();
    let name = |function: u32| {
        let name = clean(&s.function(function).label());
        index.get(&function).map_or(name.clone(), |i| format!("{name} [{i}]"))
    };
    write!(
        out,
        "\t\t     Call graph\n\n\ngranularity: each sample is {} ms, {:.2}% of {:.2} seconds\n\nindex % time    self  children    called     name\n",
        s.period_ns as f64 / 1e6,
        percent(s.period_ns, total),
        seconds(total)
    )?;
    for (i, n) in (1..).zip(shown) {
        callers(n, &name, out)?;
        let (number, own, below) = (format!("[{i}]"), seconds(n.time.self_ns), seconds(n.time.children_ns()));
        let share = percent(n.time.total_ns, total);
        writeln!(
            out,
            "{number:<6} {share:>5.1} {own:>7.2} {below:>7.2} {:>7} {:>7} {}",
            "",
            "",
            name(n.function)
        )?;
        for (callee, t) in &n.callees {
            arc(t, &name(*callee), out)?;
        }
        writeln!(out, "-----------------------------------------------")?;
    }
    Ok(())
}

fn callers(n: &Node, name: &impl Fn(u32) -> String, out: &mut dyn Write) -> Result<()> {
    if n.spontaneous.total_ns > 0 || n.callers.is_empty() {
        writeln!(out, "{0:>6} {0:>5} {0:>7} {0:>7} {0:>7} {0:>7}     <spontaneous>", "")?;
    }
    n.callers.iter().try_for_each(|(caller, t)| arc(t, &name(*caller), out))
}

fn arc(t: &Time, name: &str, out: &mut dyn Write) -> Result<()> {
    let (own, below) = (seconds(t.self_ns), seconds(t.children_ns()));
    Ok(writeln!(out, "{0:>6} {0:>5} {own:>7.2} {below:>7.2} {0:>7} {0:>7}     {name}", "")?)
}
