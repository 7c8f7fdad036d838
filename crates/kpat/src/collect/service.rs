//! `kpat collect service`: what starts recording and sending with the machine, as it lies in `dist/`.

use crate::output::Output;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// kpat-record.service: records into /var/lib/kpat-spool
    #[arg(long)]
    systemd: bool,
    /// kpat-send.service: sends finished logs to the target
    #[arg(long)]
    systemd_send: bool,
    /// kpat-receive.service: the receiving side
    #[arg(long)]
    systemd_receive: bool,
    /// /etc/init.d/kpat: both services of a device, under procd
    #[arg(long)]
    openwrt: bool,
}

const RECORD: &str = include_str!("../../../../dist/kpat-record.service");
const SEND: &str = include_str!("../../../../dist/kpat-send.service");
const RECEIVE: &str = include_str!("../../../../dist/kpat-receive.service");
const OPENWRT: &str = include_str!("../../../../dist/kpat.init");

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let w = &args.which;
    let text = match (w.systemd, w.systemd_send, w.systemd_receive) {
        (true, ..) => RECORD,
        (_, true, _) => SEND,
        (.., true) => RECEIVE,
        _ => OPENWRT,
    };
    if out.json {
        out.value(&serde_json::json!({ "text": text }))?;
    } else {
        out.raw(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
