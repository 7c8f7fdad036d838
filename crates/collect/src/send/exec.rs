//! Far ends that others' programs reach: rsync's, and storages that speak S3, through curl. Secrets go to the program on its
//! standard input, never on its command line, where everybody on the machine could read them.

use super::{Access, Target};
use crate::error::{Error, Result};
use crate::shelf::Item;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

struct Ended {
    code: i32,
    out: String,
    err: String,
}

fn run(program: &str, args: &[String], input: &str) -> Result<Ended> {
    let failed = |e: std::io::Error| Error::Target(format!("cannot run {program}: {e}; is it installed?"));
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ended already says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().map_err(failed)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ended { code: done.status.code().unwrap_or(-1), out: text(&done.stdout), err: text(&done.stderr) })
}

impl Ended {
    fn last_words(&self, program: &str) -> String {
        let last = self.err.lines().map(str::trim).rfind(|l| !l.is_empty());
        last.map_or_else(|| format!("{program} ended with {}", self.code), str::to_owned)
    }
}

/// `rsync`: what is under way has another name there, so a file that has its name is whole.
pub(super) struct Rsync {
    place: String,
    ssh: Option<String>,
    rate: Option<u64>,
}

impl Rsync {
    pub(super) fn new(place: &str, access: &Access) -> Result<Rsync> {
        if place.starts_with('-') || place.is_empty() {
            return Err(Error::Target(format!("{place:?} is not a target for rsync")));
        }
        let ssh = (!access.ssh.is_empty()).then(|| access.ssh.join(" "));
        Ok(Rsync {
            place: format!("{}/{}/", place.trim_end_matches('/'), access.device),
            ssh,
            rate: access.rate,
        })
    }
}

impl Target for Rsync {
    fn send(&mut self, item: &Item, path: &Path) -> Result<bool> {
        let mut args: Vec<String> = [
            "--times",
            "--checksum",
            "--partial-dir=.incoming",
            "--mkpath",
            "--timeout=60",
            "--contimeout=10",
        ]
        .map(str::to_owned)
        .into();
        if !self.place.starts_with("rsync://") {
            // That option is of its own protocol only.
            args.pop();
        }
        if let Some(ssh) = &self.ssh {
            args.extend(["-e".to_owned(), ssh.clone()]);
        }
        if let Some(rate) = self.rate {
            args.push(format!("--bwlimit={}K", (rate / 1024).max(1)));
        }
        args.extend(["--".to_owned(), path.display().to_string(), self.place.clone()]);
        let ended = run("rsync", &args, "")?;
        match ended.code {
            0 => Ok(false),
            // Usage, protocol, selection: it will not be better next time.
            1..=4 | 6 => Err(Error::Denied(ended.last_words("rsync"))),
            _ => Err(Error::Away(format!("{}: {}", item.name, ended.last_words("rsync")))),
        }
    }
}

/// Objects `PREFIX/DEVICE/NAME`, each with its checksum beside.
pub(super) struct S3 {
    folder: String,
    region: String,
    /// Lines of curl's own configuration that hold the secrets.
    secrets: String,
    rate: Option<u64>,
}

impl S3 {
    pub(super) fn new(place: &str, access: &Access) -> Result<S3> {
        let odd = |why: &str| Error::Target(format!("s3://{place}: {why}"));
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
        let place = place.trim_end_matches('/');
        if place.is_empty() || !place.bytes().all(plain) || place.contains("..") {
            return Err(odd("write s3://BUCKET/PREFIX, of letters, digits, `.`, `_`, `-` and `/`"));
        }
        let env = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let want = |name: &str| env(name).ok_or_else(|| odd(&format!("set {name} in the environment")));
        let (id, key) = (want("AWS_ACCESS_KEY_ID")?, want("AWS_SECRET_ACCESS_KEY")?);
        let region = env("AWS_REGION").or_else(|| env("AWS_DEFAULT_REGION")).unwrap_or("us-east-1".into());
        let quoted = |t: &str| t.replace('\\', "\\\\").replace('"', "\\\"");
        let mut secrets = format!("user = \"{}:{}\"\n", quoted(&id), quoted(&key));
        if let Some(token) = env("AWS_SESSION_TOKEN") {
            secrets += &format!("header = \"x-amz-security-token: {}\"\n", quoted(&token));
        }
        let endpoint =
            access.endpoint.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        if !(endpoint.starts_with("https://") || endpoint.starts_with("http://")) {
            return Err(odd("--endpoint is http://HOST:PORT or https://HOST:PORT"));
        }
        let folder = format!("{}/{place}/{}", endpoint.trim_end_matches('/'), access.device);
        Ok(S3 { folder, region, secrets, rate: access.rate })
    }

    /// Status and headers of the answer.
    fn curl(&self, item: &Item, sum: &str, more: &[String]) -> Result<(u16, String)> {
        let mut args: Vec<String> =
            ["-q", "-sS", "-K", "-", "-o", "/dev/null", "-D", "/dev/stderr", "-w", "%{http_code}"]
                .map(str::to_owned)
                .into();
        let limits = ["--connect-timeout", "10", "--speed-limit", "1", "--speed-time", "60"];
        args.extend(limits.map(str::to_owned));
        args.extend(["--aws-sigv4".to_owned(), format!("aws:amz:{}:s3", self.region)]);
        args.extend(["-H".to_owned(), format!("x-amz-content-sha256: {sum}")]);
        args.extend(more.iter().cloned());
        args.push(format!("{}/{}", self.folder, item.name));
        let ended = run("curl", &args, &self.secrets)?;
        match (ended.code, ended.out.trim().parse::<u16>()) {
            (0, Ok(status)) => Ok((status, ended.err)),
            // Curl before 7.75 has no such option.
            (2, _) => Err(Error::Denied(ended.last_words("curl"))),
            _ => Err(Error::Away(ended.last_words("curl"))),
        }
    }

    fn has(&self, item: &Item) -> Result<bool> {
        let (status, headers) = self.curl(item, crate::of_bytes(b"").text(), &["--head".to_owned()])?;
        match status {
            200 => {
                let mut lines = headers.lines().filter_map(|l| l.split_once(':'));
                let sum = lines.find(|(n, _)| n.eq_ignore_ascii_case("x-amz-meta-sha256"));
                if sum.is_some_and(|(_, v)| v.trim() == item.digest.text()) {
                    return Ok(true);
                }
                Err(Error::Refused {
                    name: item.name.clone(),
                    why: "another object has that name; it is not replaced".into(),
                })
            }
            404 => Ok(false),
            _ => Err(failed(status)),
        }
    }
}

fn failed(status: u16) -> Error {
    match status {
        401 | 403 => {
            Error::Denied(format!("the storage denied access ({status}): check keys, bucket and clock"))
        }
        404 => Error::Denied("there is no such bucket".into()),
        400..=499 => Error::Denied(format!("the storage refused the request ({status})")),
        _ => Error::Away(format!("the storage reported an error ({status})")),
    }
}

impl Target for S3 {
    fn send(&mut self, item: &Item, path: &Path) -> Result<bool> {
        if self.has(item)? {
            return Ok(true);
        }
        let mut more = vec![
            "-T".to_owned(),
            path.display().to_string(),
            "-H".to_owned(),
            format!("x-amz-meta-sha256: {}", item.digest.text()),
            // No object is replaced, even if two senders run at the same time.
            "-H".to_owned(),
            "If-None-Match: *".to_owned(),
        ];
        if let Some(rate) = self.rate {
            more.extend(["--limit-rate".to_owned(), rate.to_string()]);
        }
        let (status, _) = self.curl(item, item.digest.text(), &more)?;
        match status {
            // The storage has compared the checksum that was signed; what it keeps is asked once more.
            200..=299 if self.has(item)? => Ok(false),
            200..=299 => Err(Error::Away("the storage accepted the object, but does not have it".into())),
            // It came to be there meanwhile.
            409 | 412 => self.has(item),
            _ => Err(failed(status)),
        }
    }
}
