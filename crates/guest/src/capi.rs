//! The library for C: `include/kpat_guest.h` says what each function does.
//!
//! While a handler runs, the loop has the probes; what it asks for goes through the [`Hit`] it got, which is why that is kept beside.

use crate::error::{Error, Result};
use crate::guest::{Guest, Target};
use crate::memory::Space;
use crate::probe::{
    Ended, Handle, Handler, Hit, Own, Patience, Probes, Tally, What, WhatReturns, Xp, Xrp, run_all,
    ticks_per_second,
};
use crate::x86::Register;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// As in the header.
#[repr(C)]
pub struct Regs {
    general: [u64; 16],
    flags: u64,
    rip: u64,
    cr3: u64,
}

type CHandler = Option<extern "C" fn(*mut CGuest, i32, *mut Regs) -> c_int>;

pub struct CGuest {
    guest: Arc<Guest>,
    probes: RefCell<Probes<'static>>,
    /// Of the handler that runs.
    hit: Cell<*mut Hit<'static>>,
    stopper: Arc<AtomicBool>,
    tally: Arc<Tally>,
    error: RefCell<CString>,
}

/// As in the header.
#[repr(C)]
pub struct CProcess {
    pid: u32,
    parent: u32,
    task: u64,
    listed: c_int,
    numbered: c_int,
    comm: [c_char; 32],
}

thread_local! {
    static NOT_ATTACHED: RefCell<CString> = RefCell::default();
}

impl CGuest {
    /// The hit whose handler runs.
    #[expect(
        clippy::mut_from_ref,
        reason = "the header allows one thread at a time, and each use ends before the next begins"
    )]
    fn hit(&self) -> Option<&mut Hit<'static>> {
        // SAFETY: set by `handler` while the hit lives, null otherwise.
        unsafe { self.hit.get().as_mut() }
    }

    fn result(&self, result: Result<i32>) -> i32 {
        result.unwrap_or_else(|e| {
            self.error.replace(text(&e.to_string()));
            -1
        })
    }

    /// With a probe that is registered.
    fn with(
        &self,
        probe: Handle,
        inside: impl FnOnce(&mut Hit),
        outside: impl FnOnce(&mut Probes<'static>) -> Result<()>,
    ) -> i32 {
        if let Err(e) = self.tally.has(probe) {
            return self.result(Err(e));
        }
        match self.hit() {
            Some(hit) => inside(hit),
            None => match self.probes.try_borrow_mut() {
                Ok(mut probes) => return self.result(outside(&mut probes).map(|()| 0)),
                Err(_) => return self.result(Err(busy())),
            },
        }
        0
    }

    /// Kernel's and process's addresses have different tables; a process's are those of the hit.
    fn space(&self, address: u64) -> Result<Space> {
        let kernel = self.guest.memory().kernel_space();
        match self.hit() {
            _ if address >> 63 == 1 => Ok(kernel),
            Some(hit) => Ok(Space::new(hit.registers.cr3, kernel.levels)),
            None => Err(Error::NotMapped(address)),
        }
    }
}

fn busy() -> Error {
    Error::Unsupported("probes cannot be registered while a handler runs".into())
}

fn text(s: &str) -> CString {
    CString::new(s.replace('\0', "")).unwrap_or_default()
}

fn handler(guest: *mut CGuest, f: CHandler) -> Option<Handler<'static>> {
    let f = f?;
    Some(Box::new(move |hit: &mut Hit| {
        let mut regs = Regs {
            general: hit.registers.general,
            flags: hit.registers.flags,
            rip: hit.registers.rip,
            cr3: hit.registers.cr3,
        };
        // SAFETY: the guest is freed by `kpat_guest_detach` alone, which refuses while a handler runs; the lifetime only names that the
        // pointer is taken back below, before the hit ends.
        let code = unsafe {
            (*guest).hit.set(std::mem::transmute::<*mut Hit<'_>, *mut Hit<'static>>(std::ptr::from_mut(hit)));
            let code = f(guest, hit.handle.number() as i32, &raw mut regs);
            (*guest).hit.set(std::ptr::null_mut());
            code
        };
        regs.general[Register::Rsp as usize] = hit.registers.get(Register::Rsp);
        (hit.registers.general, hit.registers.flags, hit.registers.rip) =
            (regs.general, regs.flags, regs.rip);
        code
    }))
}

/// A text of the caller's.
///
/// # Safety
/// `from` is null or a C string that lives as long as the result is used.
unsafe fn given<'a>(from: *const c_char) -> Result<&'a str> {
    let no = || Error::Unsupported("a text is missing, or is not UTF-8".into());
    if from.is_null() {
        return Err(no());
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| no())
}

fn attach(target: &str) -> Result<*mut CGuest> {
    let guest = Arc::new(Guest::attach(&Target::parse(target))?);
    guest.symbols()?;
    let probes = Probes::new(guest.clone(), Arc::new(Own(guest.clone())), Patience::default())?;
    Ok(Box::into_raw(Box::new(CGuest {
        guest,
        stopper: probes.stopper(),
        tally: probes.tally(),
        probes: RefCell::new(probes),
        hit: Cell::new(std::ptr::null_mut()),
        error: RefCell::default(),
    })))
}

/// # Safety
/// `target` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_attach(target: *const c_char) -> *mut CGuest {
    // SAFETY: as the caller promises.
    unsafe { given(target) }.and_then(attach).unwrap_or_else(|e| {
        NOT_ATTACHED.with(|n| n.replace(text(&e.to_string())));
        std::ptr::null_mut()
    })
}

/// # Safety
/// `guest` is of `kpat_guest_attach`, and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_detach(guest: *mut CGuest) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        if !(*guest).hit.get().is_null() {
            return (*guest).result(Err(busy()));
        }
        match Box::from_raw(guest).probes.into_inner().remove() {
            Ok(None) => 0,
            _ => -1,
        }
    }
}

fn function(guest: &CGuest, place: &str) -> Result<u64> {
    let place = guest.guest.symbols()?.place(place)?;
    guest.probes.try_borrow().map_err(|_| busy())?.address(&place)
}

/// # Safety
/// `guest` is of `kpat_guest_attach`, `path` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_debug_file(guest: *mut CGuest, path: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    let (g, path) = unsafe { (&*guest, given(path)) };
    g.result(path.and_then(|path| g.guest.debug_file(path.as_ref())).map(|()| 0))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`, `place` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_register_xp(
    guest: *mut CGuest,
    place: *const c_char,
    before: CHandler,
    after: CHandler,
) -> i32 {
    // SAFETY: as the caller promises.
    let (g, place) = unsafe { (&*guest, given(place)) };
    g.result((|| {
        let address = function(g, place?)?;
        let what = What::Call(handler(guest, before), handler(guest, after));
        let mut probes = g.probes.try_borrow_mut().map_err(|_| busy())?;
        Ok(probes.register(Xp { address, conditions: Vec::new(), what })?.number() as i32)
    })())
}

/// # Safety
/// `guest` is of `kpat_guest_attach`, `place` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_register_xrp(
    guest: *mut CGuest,
    place: *const c_char,
    entry: CHandler,
    returned: CHandler,
    maxactive: u32,
) -> i32 {
    // SAFETY: as the caller promises.
    let (g, place) = unsafe { (&*guest, given(place)) };
    g.result((|| {
        let address = function(g, place?)?;
        let what = WhatReturns::Call(handler(guest, entry), handler(guest, returned));
        let mut probes = g.probes.try_borrow_mut().map_err(|_| busy())?;
        Ok(probes
            .register_return(Xrp {
                address,
                conditions: Vec::new(),
                at_return: Vec::new(),
                maxactive: maxactive as usize,
                what,
            })?
            .number() as i32)
    })())
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_unregister_xp(guest: *mut CGuest, handle: i32) -> c_int {
    let handle = Handle::from_number(handle as u32);
    // SAFETY: as the caller promises.
    unsafe { &*guest }.with(handle, |hit| hit.control.unregister(handle), |probes| probes.unregister(handle))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_unregister_xrp(guest: *mut CGuest, handle: i32) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { kpat_guest_unregister_xp(guest, handle) }
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_loop(guest: *mut CGuest) -> c_int {
    // SAFETY: as the caller promises.
    let g = unsafe { &*guest };
    let Ok(mut probes) = g.probes.try_borrow_mut() else { return g.result(Err(busy())) };
    let ended = probes.run(None);
    drop(probes);
    g.result(ended.map(number))
}

fn number(ended: Ended) -> i32 {
    match ended {
        Ended::Stopped | Ended::Time => 0,
        Ended::Gone => 1,
        Ended::Reset => 2,
        Ended::SetBack => 3,
    }
}

/// # Safety
/// `guests` are `count` pointers of `kpat_guest_attach`, `which` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_loop_all(
    guests: *mut *mut CGuest,
    count: usize,
    which: *mut usize,
) -> c_int {
    if count == 0 || guests.is_null() {
        return 0;
    }
    // SAFETY: as the caller promises.
    let all: Vec<&CGuest> =
        unsafe { std::slice::from_raw_parts(guests, count) }.iter().map(|g| unsafe { &**g }).collect();
    let mut borrowed = Vec::new();
    for g in &all {
        match g.probes.try_borrow_mut() {
            Ok(probes) => borrowed.push(probes),
            Err(_) => return g.result(Err(busy())),
        }
    }
    let ended = run_all(&mut borrowed.iter_mut().map(|p| &mut **p).collect::<Vec<_>>(), None);
    drop(borrowed);
    let (n, ended) = match ended {
        Ok((n, ended)) => (n, Ok(number(ended))),
        Err(e) => (0, Err(e)),
    };
    if !which.is_null() {
        // SAFETY: as the caller promises.
        unsafe { *which = n };
    }
    all[n].result(ended)
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_enable(guest: *mut CGuest, handle: i32, on: c_int) -> c_int {
    let handle = Handle::from_number(handle as u32);
    // SAFETY: as the caller promises.
    unsafe { &*guest }.with(
        handle,
        |hit| if on != 0 { hit.control.enable(handle) } else { hit.control.disable(handle) },
        |probes| {
            if on != 0 {
                probes.enable(handle)
            } else {
                probes.disable(handle)
            }
            Ok(())
        },
    )
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_stop(guest: *mut CGuest) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { &*guest }.stopper.store(true, Ordering::Relaxed);
    0
}

/// # Safety
/// `guest` is of `kpat_guest_attach`. What is returned is used in this handler only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_data(guest: *mut CGuest, size: usize) -> *mut c_void {
    // SAFETY: as the caller promises.
    let Some(hit) = (unsafe { &*guest }).hit() else { return std::ptr::null_mut() };
    if hit.data.len() < size {
        hit.data.resize(size, 0);
    }
    hit.data.as_mut_ptr().cast()
}

/// # Safety
/// `guest` is of `kpat_guest_attach`; `to` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_read(
    guest: *mut CGuest,
    address: u64,
    to: *mut c_void,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let (g, to) = unsafe { (&*guest, std::slice::from_raw_parts_mut(to.cast::<u8>(), size)) };
    g.result(g.space(address).and_then(|space| g.guest.memory().read_in(space, address, to)).map(|()| 0))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`; `from` has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_write(
    guest: *mut CGuest,
    address: u64,
    from: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let (g, from) = unsafe { (&*guest, std::slice::from_raw_parts(from.cast::<u8>(), size)) };
    g.result(g.space(address).and_then(|space| g.guest.memory().write_in(space, address, from)).map(|()| 0))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`; `to` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_string(
    guest: *mut CGuest,
    address: u64,
    to: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let (g, to) = unsafe { (&*guest, std::slice::from_raw_parts_mut(to.cast::<u8>(), size)) };
    let read =
        g.space(address).and_then(|space| g.guest.memory().string_in(space, address, size.saturating_sub(1)));
    g.result(read.map(|s| {
        if let Some(room) = to.get_mut(..=s.len()) {
            room[..s.len()].copy_from_slice(&s);
            room[s.len()] = 0;
        }
        s.len() as i32
    }))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`, `name` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_symbol(guest: *mut CGuest, name: *const c_char) -> u64 {
    // SAFETY: as the caller promises.
    let (g, name) = unsafe { (&*guest, given(name)) };
    name.ok().and_then(|n| g.guest.symbols().ok()?.address(n)).unwrap_or(0)
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_missed(guest: *mut CGuest, handle: i32) -> u64 {
    // SAFETY: as the caller promises.
    let g = unsafe { &*guest };
    let counts = g.tally.counts(Handle::from_number(handle as u32));
    counts.missed + counts.no_return
}

/// # Safety
/// `guest` is of `kpat_guest_attach`, `path` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_offset(guest: *mut CGuest, path: *const c_char) -> i64 {
    // SAFETY: as the caller promises.
    let (g, path) = unsafe { (&*guest, given(path)) };
    let offset = path.and_then(|p| g.guest.symbols()?.offset(p));
    match offset {
        Ok(offset) => offset as i64,
        Err(e) => i64::from(g.result(Err(e))),
    }
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_task(guest: *mut CGuest) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { &*guest }.hit().map_or(0, |hit| hit.task)
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_cpu(guest: *mut CGuest) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { &*guest }.hit().map_or(-1, |hit| hit.cpu as c_int)
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_ticks(guest: *mut CGuest) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { &*guest }.hit().map_or(0, |hit| hit.tsc)
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_ticks_per_second(guest: *mut CGuest) -> f64 {
    // SAFETY: as the caller promises.
    let g = unsafe { &*guest };
    ticks_per_second(&g.guest, &Own(g.guest.clone()))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_hold(guest: *mut CGuest) -> c_int {
    // SAFETY: as the caller promises.
    let g = unsafe { &*guest };
    g.result(g.probes.try_borrow_mut().map_err(|_| busy()).map(|mut probes| {
        probes.hold();
        0
    }))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_commit(guest: *mut CGuest) -> c_int {
    // SAFETY: as the caller promises.
    let g = unsafe { &*guest };
    g.result(g.probes.try_borrow_mut().map_err(|_| busy()).and_then(|mut probes| probes.commit()).map(|()| 0))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`; `each` is called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_symbols(
    guest: *mut CGuest,
    each: Option<extern "C" fn(*mut c_void, *const c_char, u64, c_char)>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let g = unsafe { &*guest };
    g.result(g.guest.symbols().map(|symbols| {
        for s in symbols.table().iter() {
            if let Some(each) = each {
                each(context, text(s.name).as_ptr(), s.address, s.kind as u8 as c_char);
            }
        }
        i32::try_from(symbols.table().len()).unwrap_or(i32::MAX)
    }))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`; `each` is called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_processes(
    guest: *mut CGuest,
    each: Option<extern "C" fn(*mut c_void, *const CProcess)>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let g = unsafe { &*guest };
    g.result(g.guest.tasks().and_then(|t| t.processes()).map(|all| {
        for p in &all {
            let mut comm = [0; 32];
            comm.iter_mut().take(31).zip(p.task.comm.bytes()).for_each(|(to, b)| *to = b as c_char);
            let process = CProcess {
                pid: p.task.tgid,
                parent: p.task.parent,
                task: p.task.address,
                listed: c_int::from(p.listed),
                numbered: c_int::from(p.numbered),
                comm,
            };
            if let Some(each) = each {
                each(context, &raw const process);
            }
        }
        all.len() as i32
    }))
}

/// # Safety
/// `guest` is of `kpat_guest_attach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_hits(guest: *mut CGuest, handle: i32) -> u64 {
    // SAFETY: as the caller promises.
    unsafe { &*guest }.tally.counts(Handle::from_number(handle as u32)).hits
}

/// # Safety
/// `guest` is null or of `kpat_guest_attach`. What is returned lives until the next call that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kpat_guest_error(guest: *mut CGuest) -> *const c_char {
    // SAFETY: as the caller promises.
    match unsafe { guest.as_ref() } {
        Some(g) => g.error.borrow().as_ptr(),
        None => NOT_ATTACHED.with(|n| n.borrow().as_ptr()),
    }
}
