//! Whom the CPUs worked for, and the tree of the samples.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::functions::{Flame, FlameNode};
use crate::answers::profile::*;
use crate::answers::{Columns, Ns};
use kpat_model::{ProcessNumber, Purpose};
use kpat_query::profile::peers::across;
use kpat_query::profile::{OTHERS, OfProcess, Profile as Found, Taken, Wanted, pid as pid_of};
use kpat_query::sampled::tree::{Context, Part};
use kpat_query::sampled::{Sampled, sampled};
use kpat_store::tables::{PacketRow, ProcessRow};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Rows in an answer.
const MOST: usize = 2_000;

pub fn profile(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<ProfileAnswer> {
    let store = &ask.log.store;
    let Some(p) = kpat_query::profile::profile(store, &Wanted::default())? else {
        return Ok(ProfileAnswer { profile: None });
    };
    let samples = samples(ask, progress)?;
    let of_tasks = filters(ask)?;
    let processes: Vec<ProfileProcess> =
        p.processes.iter().take(MOST).map(|x| process(x, of_tasks.get(&pid_of(x.number)))).collect();
    let b = &p.buckets;
    let buckets = [
        ("processes", b.process_ns),
        ("others, not chosen", b.other_ns),
        ("kernel", b.kernel_ns),
        ("idle", b.idle_ns),
        ("no room in the tables", b.unplaced_ns),
        ("not seen", b.unseen_ns),
    ];
    let cpus: BTreeSet<i32> = p.accounts.iter().map(|a| a.cpu).collect();
    Ok(ProfileAnswer {
        profile: Some(Profile {
            passed: Ns(p.passed_ns),
            cpus: cpus.len(),
            buckets: buckets
                .iter()
                .filter(|(_, ns)| *ns != 0)
                .map(|(n, ns)| ((*n).into(), Ns(*ns)))
                .collect(),
            difference: Ns(b.sum_ns() - p.passed_ns),
            packets: p.packets(),
            requests: p.requests,
            left_out: p.processes.len() - processes.len(),
            processes,
            pairs: p.taken.iter().take(MOST).map(|t| pair(&p, t)).collect(),
            pairs_left_out: p.taken.len().saturating_sub(MOST),
            clients: clients(store, &p)?,
            samples: samples.as_ref().as_ref().map(|s| (s.samples - s.idle, Ns(s.period_ns))),
        }),
    })
}

/// On this host, then on others, by address.
fn clients(store: &kpat_query::Store, p: &Found) -> Answer<Vec<ProfilePair>> {
    let mut all: Vec<ProfilePair> = p.clients.iter().take(MOST).map(|t| pair(p, t)).collect();
    for a in across(&[store])? {
        let of = Taken {
            victim: Some(a.server.1),
            purpose: Purpose::Client,
            beneficiary: None,
            ns: a.ns,
            packets: 0,
            handed_ns: 0,
            unsure_ns: 0,
        };
        let beneficiary_name = a.address.unwrap_or_else(|| "another host".into());
        all.push(ProfilePair { beneficiary_name, ..pair(p, &of) });
    }
    all.sort_by_key(|c| std::cmp::Reverse(c.time.0));
    all.truncate(MOST);
    Ok(all)
}

fn samples(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Arc<Option<Sampled>>> {
    const WORDS: &str = "reading the samples";
    ask.log.sampled.get_or_once(
        (),
        progress,
        |p| if p(WORDS, 0, 1) { Ok(()) } else { Err(Failure::Left) },
        |_| Ok(sampled(&ask.log.store, None)?),
    )
}

/// By process whose tasks have packets, how to ask for these.
fn filters(ask: &Ask<'_>) -> Answer<HashMap<i32, String>> {
    let store = &ask.log.store;
    let table = store.table::<PacketRow>()?;
    let mut with_packets: BTreeSet<i64> = BTreeSet::new();
    for group in 0..table.groups() {
        with_packets.extend(table.ints(group, "pid").map_err(kpat_query::Error::from)?);
    }
    let rows = store.all::<ProcessRow>()?;
    let some = rows.iter().filter(|row| with_packets.contains(&i64::from(row.pid)));
    Ok(some.map(|row| (row.tgid, format!("pid == {}", row.tgid))).collect())
}

/// With what it was called before: all of its time stands with the last name.
fn called(x: &OfProcess) -> String {
    let name = x.name.clone().unwrap_or_default();
    if x.names_before.is_empty() { name } else { format!("{name} (was {})", x.names_before.join(", ")) }
}

fn process(x: &OfProcess, where_packets: Option<&String>) -> ProfileProcess {
    ProfileProcess {
        number: x.number,
        name: called(x),
        kernel_thread: x.is_thread,
        unit: x.label.as_ref().and_then(|l| l.unit()).map(str::to_owned),
        container: x.label.as_ref().and_then(|l| l.container()).map(str::to_owned),
        charged: Ns(x.charged_ns()),
        user: Ns(x.user_ns),
        kernel: Ns(x.kernel_ns),
        system_calls: x.system_calls,
        faults: Ns(x.fault_ns),
        page_faults: x.page_faults,
        served: Ns(x.served_ns),
        packets: x.served_packets,
        requests: x.block_requests,
        taken: Ns(x.taken_ns),
        for_clients: Ns(x.for_clients_ns),
        ran: Ns(x.ran_ns()),
        where_packets: where_packets.cloned(),
    }
}

fn pair(p: &Found, t: &Taken) -> ProfilePair {
    let name = |pid: Option<i32>, otherwise: &str| {
        if pid == Some(OTHERS) {
            return "others".into();
        }
        let of = pid.and_then(|pid| p.processes.iter().find(|x| x.number == pid));
        of.map_or_else(|| otherwise.to_owned(), |x| x.name.clone().unwrap_or_default())
    };
    // What was dropped was for nobody, whoever would have had it.
    let beneficiary = t.beneficiary.filter(|_| t.purpose != Purpose::Drop);
    ProfilePair {
        victim: t.victim,
        victim_name: name(t.victim, "idle"),
        beneficiary,
        beneficiary_name: match (t.purpose, t.beneficiary) {
            (Purpose::Drop, Some(_)) => {
                format!(
                    "dropped, {} {}",
                    name(t.beneficiary, "?"),
                    ProcessNumber::from(t.beneficiary.unwrap_or_default())
                )
            }
            _ => name(beneficiary, t.purpose.name()),
        },
        time: Ns(t.ns),
        packets: t.packets,
    }
}

pub fn flame(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Flame> {
    let number: Option<i32> = ask.number("number")?;
    let context = match ask.request.get("context").filter(|c| !c.is_empty()) {
        None => None,
        Some(name) => {
            let known = Context::ALL.into_iter().find(|c| c.name() == name);
            Some(known.ok_or_else(|| Failure::words(format!("context={name} is not one of a profile")))?)
        }
    };
    let found = samples(ask, progress)?;
    let Some(s) = found.as_ref() else { return Ok(Flame { total: Ns(0), nodes: Columns(Vec::new()) }) };
    let tree = s.tree(|w| {
        number.is_none_or(|n| w.served == Some(n)) && context.is_none_or(|c| Context::of(w.busy) == c)
    });
    let part = |part: Part| match part {
        Part::Served => "process",
        Part::Context => "context",
        Part::User => "user",
        Part::Kernel => "kernel",
    };
    let total = tree.iter().filter(|n| n.parent.is_none()).map(|n| n.total_ns).sum();
    let node = |n: kpat_query::sampled::tree::Place| FlameNode {
        func: -1,
        layer: part(n.part).to_owned(),
        name: n.name,
        depth: n.depth,
        parent: n.parent.map_or(-1, |p| p as i64),
        calls: n.samples as u64,
        total: Ns(n.total_ns),
        own: Ns(n.self_ns),
    };
    Ok(Flame { total: Ns(total), nodes: Columns(tree.into_iter().map(node).collect()) })
}
