//! The samples as one tree: whom they are charged to, in what context, then the functions from the outermost on.

use super::{Sampled, Weighted};
use kpat_model::{Busy, ProcessNumber};
use std::collections::BTreeMap;

/// In what a sample was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// User mode, a system call or a kernel thread.
    Task,
    Fault,
    Softirq,
    Hardirq,
}

impl Context {
    pub const ALL: [Context; 4] = [Context::Task, Context::Fault, Context::Softirq, Context::Hardirq];

    pub fn of(busy: Busy) -> Context {
        match busy {
            Busy::Softirq | Busy::SoftirqThread => Context::Softirq,
            Busy::Hardirq => Context::Hardirq,
            Busy::Fault => Context::Fault,
            Busy::User | Busy::Kernel | Busy::Thread | Busy::Idle | Busy::Unseen => Context::Task,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Context::Task => "task",
            Context::Fault => "page fault",
            Context::Softirq => "softirq",
            Context::Hardirq => "hardirq",
        }
    }
}

/// What a node of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A process, or what there is instead of one.
    Served,
    Context,
    User,
    Kernel,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub part: Part,
    pub name: String,
    pub depth: u32,
    /// Place in the list.
    pub parent: Option<usize>,
    pub total_ns: i64,
    pub self_ns: i64,
    pub samples: i64,
}

#[derive(Default)]
struct Node {
    total_ns: i64,
    self_ns: i64,
    samples: i64,
    within: BTreeMap<(Part, String), Node>,
}

impl Node {
    fn list(self, parent: Option<usize>, depth: u32, all: &mut Vec<Place>) {
        let mut nodes: Vec<((Part, String), Node)> = self.within.into_iter().collect();
        nodes.sort_by_key(|(_, n)| std::cmp::Reverse(n.total_ns));
        for ((part, name), n) in nodes {
            let (total_ns, self_ns, samples) = (n.total_ns, n.self_ns, n.samples);
            all.push(Place { part, name, depth, parent, total_ns, self_ns, samples });
            let here = all.len() - 1;
            n.list(Some(here), depth + 1, all);
        }
    }
}

impl Sampled {
    /// Whom a stack is charged to: name and number, or what for in brackets.
    pub fn served_name(&self, w: &Weighted) -> String {
        match w.served {
            Some(n) => format!("{} {}", self.process_name(n), ProcessNumber::from(n)),
            None => format!("({})", w.purpose.name()),
        }
    }

    /// The tree of those that are `wanted`, each node before what is within it, what has most time first.
    pub fn tree(&self, wanted: impl Fn(&Weighted) -> bool) -> Vec<Place> {
        let mut root = Node::default();
        for w in self.stacks.iter().filter(|w| wanted(w)) {
            let mut path = vec![(Part::Served, self.served_name(w))];
            let context = Context::of(w.busy);
            if context != Context::Task {
                path.push((Part::Context, context.name().to_owned()));
            }
            path.extend(w.functions.iter().map(|f| {
                let f = self.function(*f);
                (if f.is_kernel { Part::Kernel } else { Part::User }, f.name.clone())
            }));
            let mut node = &mut root;
            for step in path {
                node = node.within.entry(step).or_default();
                node.total_ns += w.ns;
                node.samples += w.samples;
            }
            node.self_ns += w.ns;
        }
        let mut all = Vec::new();
        root.list(None, 0, &mut all);
        all
    }
}
