//! `kpat guest attach`: handlers of a shared object serve a guest's probes.
//!
//! The object is linked against libkpat_guest, and everything is called through the one that it was linked against: this program has its own copy
//! of that code, of which the object's pointers are none.

use super::Which;
use crate::output::Output;
use crate::signals::Signals;
use anyhow::{Context, bail};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(
    after_help = "The object has a function int kpat_guest_handlers(struct kpat_guest *guest, int argc, char **argv), which registers probes and returns 0; and is \
                        linked against libkpat_guest (kpat_guest.h). argv are the words behind the object's path. Handlers run until one of them stops the loop, Ctrl-C, \
                        or the guest's end."
)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Source lines from this file with debug information: the guest's vmlinux, or a module's (may be repeated)
    #[arg(long, value_name = "FILE")]
    debug: Vec<PathBuf>,
    /// The shared object with the handlers
    #[arg(value_name = "HANDLERS.so")]
    object: PathBuf,
    /// What the object is given
    #[arg(value_name = "WORD", trailing_var_arg = true)]
    words: Vec<String>,
}

type Guest = *mut c_void;
type Attach = unsafe extern "C" fn(*const c_char) -> Guest;
type OfGuest = unsafe extern "C" fn(Guest) -> c_int;
type ErrorOf = unsafe extern "C" fn(Guest) -> *const c_char;
type WithText = unsafe extern "C" fn(Guest, *const c_char) -> c_int;
type Handlers = unsafe extern "C" fn(Guest, c_int, *const *const c_char) -> c_int;

/// The loaded object; it stays loaded.
struct Object(*mut c_void);

impl Object {
    fn load(path: &PathBuf) -> anyhow::Result<Object> {
        // A name without a slash would be looked for where libraries are.
        let whole = std::fs::canonicalize(path).with_context(|| path.display().to_string())?;
        let name = CString::new(whole.as_os_str().as_bytes())?;
        // SAFETY: the path is a C string; what the object does when it is loaded is what its user wants.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            bail!("{}", last_error());
        }
        Ok(Object(handle))
    }

    /// # Safety
    /// `F` is the type of the function of that name.
    unsafe fn function<F: Copy>(&self, name: &str) -> anyhow::Result<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a pointer to a function");
        let text = CString::new(name)?;
        // SAFETY: the object is loaded, the name is a C string.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if found.is_null() {
            bail!(
                "the object has no {name}; it has to be linked against libkpat_guest and define kpat_guest_handlers"
            );
        }
        // SAFETY: of the same size, and as the caller promises.
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }
}

fn last_error() -> String {
    // SAFETY: returns null or a C string that lives until the next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the object cannot be loaded".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let signals = Signals::block()?;
    let object = Object::load(&args.object)?;
    // SAFETY: the types are those of kpat_guest.h.
    let (attach, debug_file, detach, serve, stop, error, handlers) = unsafe {
        (
            object.function::<Attach>("kpat_guest_attach")?,
            object.function::<WithText>("kpat_guest_debug_file")?,
            object.function::<OfGuest>("kpat_guest_detach")?,
            object.function::<OfGuest>("kpat_guest_loop")?,
            object.function::<OfGuest>("kpat_guest_stop")?,
            object.function::<ErrorOf>("kpat_guest_error")?,
            object.function::<Handlers>("kpat_guest_handlers")?,
        )
    };
    let words: Vec<CString> =
        args.words.iter().map(|w| CString::new(w.as_str())).collect::<Result<_, _>>()?;
    let mut argv: Vec<*const c_char> = words.iter().map(|w| w.as_ptr()).collect();
    argv.push(std::ptr::null());
    let debug: Vec<CString> =
        args.debug.iter().map(|p| CString::new(p.as_os_str().as_bytes())).collect::<Result<_, _>>()?;
    let target = CString::new(args.which.guest.as_str())?;
    let said = |guest: Guest| {
        // SAFETY: a C string of the library's.
        unsafe { CStr::from_ptr(error(guest)) }.to_string_lossy().into_owned()
    };
    // SAFETY: a C string; the guest is used until it is detached below.
    let guest = unsafe { attach(target.as_ptr()) };
    if guest.is_null() {
        bail!("{}", said(guest));
    }
    for path in debug {
        // SAFETY: as above.
        if unsafe { debug_file(guest, path.as_ptr()) } < 0 {
            let why = said(guest);
            // SAFETY: not used any more.
            unsafe { detach(guest) };
            bail!("{why}");
        }
    }
    // SAFETY: as above.
    let registered = unsafe { handlers(guest, words.len() as c_int, argv.as_ptr()) };
    let ended = if registered == 0 {
        out.say("the handlers are in");
        let address = guest as usize;
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            signals.wait();
            // SAFETY: may be called from any thread while the loop runs; after it this program ends.
            unsafe { stop(address as Guest) };
        })?;
        // SAFETY: as above.
        unsafe { serve(guest) }
    } else {
        -1
    };
    let why = if ended < 0 { said(guest) } else { String::new() };
    match ended {
        1 => out.say("the guest is off"),
        2 => out.say("the guest began anew; its probes are gone"),
        3 => out.say("the guest was set back to a snapshot from before; its probes are gone"),
        _ => {}
    }
    // SAFETY: not used any more.
    unsafe { detach(guest) };
    match ended {
        0.. => Ok(ExitCode::SUCCESS),
        _ if why.is_empty() => {
            bail!("the handlers were not registered: kpat_guest_handlers returned {registered}")
        }
        _ => bail!("{why}"),
    }
}
