//! The gathering side's ways in, and who may use them.

use super::logged;
use crate::output::{Output, usage};
use crate::record::parse_size;
use crate::render::{bytes, clean};
use kpat_collect::receive::{Event, Service, serve};
use kpat_collect::{shelf, token as tokens};
use kpat_formats::text::plain_json;
use serde_json::json;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(clap::Args)]
pub struct Receive {
    /// Folder with the devices' folders and their tokens
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Address to listen on; without ADDRESS only this machine can connect. For TLS put a proxy in front
    #[arg(long, value_name = "[ADDR:]PORT", default_value = "9436", value_parser = crate::metrics::address)]
    listen: SocketAddr,
    /// Maximum total size of one device's files
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
}

#[derive(clap::Args)]
pub struct Accept {
    /// Folder with the devices' folders
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Name of the device that sends
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Maximum total size of its files
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<u64>,
}

#[derive(clap::Args)]
pub struct Token {
    /// Folder with the devices' folders
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Revoke all tokens of the device
    #[arg(long)]
    revoke: bool,
}

pub fn receive(args: &Receive, out: &Output) -> anyhow::Result<ExitCode> {
    if !args.folder.is_dir() {
        return Err(usage(format!(
            "there is no folder {}; `kpat collect token` creates it",
            args.folder.display()
        )));
    }
    let service = Service::bind(&args.folder, args.listen, args.limit).map_err(logged)?;
    out.say(&format!("listening at http://{}", service.address()?));
    let json = out.json;
    service.run(Arc::new(move |e: Event| {
        let text = match (&e, json) {
            (Event::Added { device, name, bytes }, true) => {
                json!({ "event": "added", "device": device, "file": name, "bytes": bytes }).to_string()
            }
            (Event::Refused { from, why }, true) => {
                json!({ "event": "refused", "device": from, "why": why }).to_string()
            }
            (Event::Added { device, name, bytes: n }, false) => format!("{device}: {name}, {}", bytes(*n)),
            (Event::Refused { from, why }, false) => format!("{from}: refused: {why}"),
        };
        // Its reader has gone: receiving continues.
        let _ = if json {
            writeln!(std::io::stdout(), "{}", plain_json(&text))
        } else {
            writeln!(std::io::stderr(), "kpat: {}", clean(&text))
        };
    }))
}

pub fn accept(args: &Accept) -> anyhow::Result<ExitCode> {
    if !shelf::is_name(&args.device) {
        return Err(usage(format!("{:?} cannot be the name of a device", args.device)));
    }
    let (stdin, stdout) = (std::io::stdin().lock(), std::io::stdout().lock());
    // Messages would disturb the protocol: the device gets its answers.
    match serve(&args.folder, &args.device, args.limit, stdin, stdout, &mut |_| ()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e) => Err(anyhow::Error::new(e).context("the device's requests ended")),
    }
}

pub fn token(args: &Token, out: &Output) -> anyhow::Result<ExitCode> {
    if args.revoke {
        let n = tokens::revoke(&args.folder, &args.device).map_err(logged)?;
        if out.json {
            out.value(&json!({ "device": args.device, "revoked": n }))?;
        } else {
            out.say(&format!("{n} revoked for {}", args.device));
        }
        return Ok(if n > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let token = tokens::add(&args.folder, &args.device).map_err(logged)?;
    if out.json {
        out.value(&json!({ "device": args.device, "token": token }))?;
    } else {
        out.raw(format!("{token}\n").as_bytes())?;
        out.say("this is shown only once; use it on the device: kpat collect send SPOOL http://HOST:PORT --token-file FILE");
    }
    Ok(ExitCode::SUCCESS)
}
