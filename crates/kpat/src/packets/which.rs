//! Which packets: the arguments that every command over packets takes.

use super::expression;
use crate::open::Integrated;
use crate::output::usage;
use crate::render::parse_duration;
use kpat_query::filter::When;
use kpat_query::{PacketFilter, verdict};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Clone)]
pub struct Which {
    /// Which packets, for example: tcp port 80 dropped
    #[arg(value_name = "EXPRESSION")]
    expression: Vec<String>,
    /// tcp, udp, icmp, icmpv6, arp, ip, ip6 or a number
    #[arg(long)]
    proto: Option<String>,
    /// Source or destination address
    #[arg(long, value_parser = expression::address)]
    addr: Option<String>,
    /// Source or destination port
    #[arg(long)]
    port: Option<u16>,
    /// delivered, forwarded, dropped, sent, in-flight, transformed, unknown
    #[arg(long)]
    verdict: Option<String>,
    /// Handled by a function whose name matches this glob
    #[arg(long, value_name = "GLOB")]
    func: Option<String>,
    /// At least this long in the kernel, for example 10us
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    min_path: Option<i64>,
    /// At most this long in the kernel
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_path: Option<i64>,
    /// Alive at or after this time: since the start (1.5s) or of day (10:22:30, UTC)
    #[arg(long, value_name = "TIME", value_parser = When::parse)]
    from: Option<When>,
    /// Alive at or before this time since the start
    #[arg(long, value_name = "TIME", value_parser = When::parse)]
    until: Option<When>,
}

impl Which {
    /// The words of the expression that name an integrated log, and the rest with `more` words behind.
    pub fn split_logs(&self, more: &[String]) -> (Vec<PathBuf>, Which) {
        let is_log =
            |word: &String| word.ends_with(".kpat") || Path::new(word).join("manifest.json").exists();
        let (logs, words): (Vec<String>, Vec<String>) = self.expression.iter().cloned().partition(is_log);
        let expression = words.into_iter().chain(more.iter().cloned()).collect();
        (logs.into_iter().map(PathBuf::from).collect(), Which { expression, ..self.clone() })
    }

    pub fn filter(&self, store: &Integrated) -> anyhow::Result<PacketFilter> {
        let code = match &self.verdict {
            None => None,
            Some(name) => Some(verdict::from_name(name).ok_or_else(|| {
                usage(format!(
                    "`{name}` is no verdict: use delivered, forwarded, dropped, sent, in-flight, transformed or unknown"
                ))
            })?),
        };
        let filter = PacketFilter {
            expression: expression::parse(&self.expression.join(" ")).map_err(usage)?,
            proto: self.proto.clone(),
            addr: self.addr.clone(),
            port: self.port,
            verdict: code,
            func: self.func.clone(),
            min_path_ns: self.min_path,
            max_path_ns: self.max_path,
            from_ns: self.from.map(|t| t.in_log(store)).transpose()?,
            to_ns: self.until.map(|t| t.in_log(store)).transpose()?,
            ..PacketFilter::default()
        };
        Ok(filter)
    }
}
