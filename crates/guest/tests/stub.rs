//! The code of probes in a process of the host's own: threads call functions that are patched as a guest's are, the other end serves.
//!
//! What a guest adds (its page tables, its running task) is tested in guests. Truth is the number of calls that the threads made, and what
//! the functions compute without a probe.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_guest::mailbox::code::{Place, Shared, shared};
use kpat_guest::mailbox::host::{Answer, Entry, Host, Read};
use kpat_guest::mailbox::layout::*;
use kpat_guest::mailbox::region::Region;
use kpat_guest::mailbox::stub::{Maker, Returns, Stub};
use kpat_guest::mailbox::values::{Act, Base, Compare, Condition, Item, Value};
use kpat_guest::x86::{Displaced, Register, jump};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

mod packets;

type Function = extern "C" fn(u64, u64) -> u64;

/// Both ends of a hit spin: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Functions and shared memory in the lowest 2 GB, where addresses are what they are in a kernel: 32 bits with their sign.
struct Bench {
    region: Arc<Region>,
    place: Place,
    shared: Shared,
    functions: u64,
    used: usize,
    stubs: usize,
    _alone: MutexGuard<'static, ()>,
}

fn map(at: u64, length: usize, file: Option<(&File, u64)>) {
    let flags = libc::MAP_FIXED_NOREPLACE
        | if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    let (fd, offset) = file.map_or((-1, 0), |(f, o)| (f.as_raw_fd(), o));
    // SAFETY: a new mapping where nothing is.
    let got = unsafe {
        libc::mmap(
            at as *mut _,
            length,
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            flags,
            fd,
            offset as i64,
        )
    };
    assert_eq!(got as u64, at, "{}", std::io::Error::last_os_error());
}

impl Bench {
    /// `n`: which of the tests, they run side by side.
    fn new(n: u64) -> Bench {
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a new file in memory.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"mailbox".as_ptr(), 0)) };
        let region = Arc::new(Region::map(&file).unwrap());
        let base = 0x1000_0000 + n * 0x200_0000;
        for (i, page) in PAGES.iter().enumerate() {
            map(base + i as u64 * PAGE, PAGE as usize, Some((&file, page * PAGE)));
        }
        let functions = base + 0x1c0_0000;
        map(functions, 4096, None);
        let place = Place { base, kernel: None, sahf: true, emulated: false };
        let (code, parts) = shared(&place).unwrap();
        region.write(SHARED_CODE, &code);
        let second = ticks_of(Duration::from_secs(1));
        region.set64(WAIT_BEGIN, 5 * second);
        region.set64(WAIT_END, 10 * second);
        Bench { region, place, shared: parts, functions, used: 0, stubs: STUBS, _alone: alone }
    }

    fn function(&mut self, code: &[u8]) -> (u64, Function) {
        let at = self.functions + self.used as u64;
        // SAFETY: in the page of functions; the code is that of a function with this signature.
        let f = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len());
            std::mem::transmute::<u64, Function>(at)
        };
        self.used += code.len().next_multiple_of(64);
        (at, f)
    }

    fn decode(&self, at: u64) -> Displaced {
        // SAFETY: in the page of functions, which has 15 bytes behind it.
        Displaced::decode(at, unsafe { std::slice::from_raw_parts(at as *const u8, 15) }).unwrap()
    }

    fn maker(&self) -> Maker<'_> {
        Maker { place: &self.place, shared: self.shared }
    }

    fn put(&mut self, make: impl Fn(&Maker, u64) -> kpat_guest::mailbox::stub::Made) -> u64 {
        let made = make(&self.maker(), self.place.base + self.stubs as u64);
        self.region.write(self.stubs, &made.code);
        self.stubs += made.code.len().next_multiple_of(64);
        made.entry
    }

    fn patch(&self, at: u64, entry: u64) {
        let jump = jump(at, entry).unwrap();
        // SAFETY: in the page of functions; nothing executes there yet.
        unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), at as *mut u8, 5) };
    }

    fn enable(&self, id: usize, on: bool) {
        self.region.set32(CONTROLS + id * CONTROL + ENABLED, u32::from(on));
    }

    fn probe(&mut self, id: usize, at: u64, conditions: &[Condition], act: Act, at_entry: bool) {
        let displaced = self.decode(at);
        let entry = self.put(|m, to| {
            m.site(to, &displaced, &Stub { id, conditions, act: &act, at_entry }, None, None).unwrap()
        });
        self.enable(id, true);
        self.patch(at, entry);
    }

    fn probe_return(
        &mut self,
        id: usize,
        at: u64,
        act: Act,
        saved: &[Value],
        call_at_entry: bool,
        count: usize,
    ) {
        let displaced = self.decode(at);
        let back = self.put(|m, to| {
            m.at_return(to, &Stub { id: id + 1, conditions: &[], act: &act, at_entry: false }).unwrap()
        });
        for n in 0..count {
            let code = self.maker().trampoline(n, back).unwrap();
            self.region.write(TRAMPOLINES + n * TRAMPOLINE, &code);
        }
        let returns = Returns { call_at_entry, saved, first: 0, count };
        let entry = self.put(|m, to| {
            m.site(
                to,
                &displaced,
                &Stub { id, conditions: &[], act: &Act::Call, at_entry: true },
                Some(&returns),
                None,
            )
            .unwrap()
        });
        self.enable(id, true);
        self.enable(id + 1, true);
        self.patch(at, entry);
    }

    /// Serves in a thread until it is dropped.
    fn serve(
        &self,
        mut handle: impl FnMut(
            &kpat_guest::mailbox::host::Taken,
            &mut kpat_guest::mailbox::host::Registers,
        ) -> Answer
        + Send
        + 'static,
    ) -> Server {
        let (region, stop) = (self.region.clone(), Arc::new(AtomicBool::new(false)));
        let until = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut host = Host::new(region);
            while !until.load(Ordering::Relaxed) {
                match host.take() {
                    Some(taken) => {
                        let mut registers = taken.registers;
                        let answer = handle(&taken, &mut registers);
                        host.answer(&taken, answer, &registers);
                    }
                    None => std::hint::spin_loop(),
                }
            }
            host.late
        });
        Server { stop, thread: Some(thread) }
    }
}

struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn ticks() -> u64 {
    // SAFETY: reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

fn ticks_of(time: Duration) -> u64 {
    let (start, from) = (Instant::now(), ticks());
    while start.elapsed() < Duration::from_millis(20) {}
    ((ticks() - from) as f64 / start.elapsed().as_secs_f64() * time.as_secs_f64()) as u64
}

/// nop of five bytes; lea rax, [rdi+rsi*2]; add rax, 7; ret
const SUM: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0x48, 0x8d, 0x04, 0x77, 0x48, 0x83, 0xc0, 0x07, 0xc3];

#[test]
fn every_hit_reaches_the_handler_once() {
    let mut b = Bench::new(0);
    let (at, f) = b.function(SUM);
    b.probe(1, at, &[], Act::Call, true);
    let (calls, sum) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (c, s) = (calls.clone(), sum.clone());
    let server = b.serve(move |taken, r| {
        assert_eq!((taken.probe, taken.registers.rip), (1, at));
        c.fetch_add(1, Ordering::Relaxed);
        s.fetch_add(r.get(Register::Rdi), Ordering::Relaxed);
        Answer::GoOn
    });
    // One caller first: it, the handler and this machine's other work share few processors. A million hits are counted in guests (lab/test GuestCounts).
    const ALONE: u64 = 200_000;
    const EACH: u64 = 5_000;
    (0..ALONE).for_each(|n| assert_eq!(f(n, n), 3 * n + 7));
    std::thread::scope(|t| {
        for thread in 0..2u64 {
            t.spawn(move || {
                (0..EACH).for_each(|n| assert_eq!(f(ALONE + 2 * n + thread, n), ALONE + 4 * n + thread + 7))
            });
        }
    });
    let counts = Host::new(b.region.clone()).counts(1);
    drop(server);
    let n = ALONE + 2 * EACH;
    assert_eq!(calls.load(Ordering::Relaxed), n);
    assert_eq!(sum.load(Ordering::Relaxed), n * (n - 1) / 2);
    assert_eq!((counts.hits, counts.missed), (n, 0));
}

#[test]
fn a_handler_changes_registers_and_where_execution_goes() {
    let mut b = Bench::new(1);
    let (at, f) = b.function(SUM);
    // mov eax, 99; ret
    let (other, _) = b.function(&[0xb8, 99, 0, 0, 0, 0xc3]);
    b.probe(1, at, &[], Act::Call, true);
    let _server = b.serve(move |_, r| match r.get(Register::Rdi) {
        1 => {
            r.set(Register::Rdi, 1000);
            Answer::Changed
        }
        2 => {
            r.rip = other;
            Answer::Elsewhere
        }
        _ => Answer::GoOn,
    });
    assert_eq!([f(0, 5), f(1, 5), f(2, 5), f(3, 5)], [17, 1017, 99, 20]);
}

#[test]
fn without_a_host_calls_go_on_and_are_counted() {
    let mut b = Bench::new(2);
    let (at, f) = b.function(SUM);
    b.probe(1, at, &[], Act::Call, true);
    b.region.set64(WAIT_BEGIN, ticks_of(Duration::from_millis(50)));
    let start = Instant::now();
    assert_eq!(f(1, 1), 10);
    assert!(start.elapsed() >= Duration::from_millis(40), "{:?}", start.elapsed());
    // From then on nobody waits.
    let start = Instant::now();
    (0..1000).for_each(|n| assert_eq!(f(n, 1), n + 9));
    assert!(start.elapsed() < Duration::from_millis(40), "{:?}", start.elapsed());
    let mut host = Host::new(b.region.clone());
    assert_eq!((host.counts(1).missed, host.counts(1).hits), (1001, 0));
    // A handler that never answers: the hit is given up, the slot freed when the handler comes back.
    assert!(host.take().is_none());
    b.region.set64(WAIT_END, ticks_of(Duration::from_millis(50)));
    let caller = std::thread::spawn(move || f(1, 1));
    let taken = loop {
        if let Some(taken) = host.take() {
            break taken;
        }
    };
    assert_eq!(caller.join().unwrap(), 10);
    assert!(!host.answer(&taken, Answer::Changed, &taken.registers));
    assert_eq!((host.counts(1).missed, host.late), (1002, 1));
    assert!((0..SLOT_COUNT).all(|n| b.region.get32(SLOTS + n * SLOT + CLAIM) == 0));
    // And a host that is there again is asked again.
    let _server = b.serve(|_, r| {
        r.set(Register::Rsi, 0);
        Answer::Changed
    });
    while b.region.get32(GONE) != 0 {}
    assert_eq!(f(1, 1), 8);
}

#[test]
fn counts_and_conditions_need_no_host() {
    let mut b = Bench::new(3);
    let (at, f) = b.function(SUM);
    b.probe(1, at, &[], Act::Count, true);
    let (at, g) = b.function(SUM);
    let conditions = [
        Condition { value: Value::argument(0).unwrap(), compare: Compare::AtLeast, with: 10 },
        Condition {
            value: Value { signed: true, width: 4, ..Value::argument(1).unwrap() },
            compare: Compare::Less,
            with: 0,
        },
    ];
    b.probe(2, at, &conditions, Act::Count, true);
    std::thread::scope(|t| {
        for _ in 0..2 {
            t.spawn(|| {
                (0..100_000).for_each(|n| assert_eq!(f(n, 0), n + 7));
                (0..20).for_each(|n| assert_eq!(g(n, 5), n + 17));
                (0..20).for_each(|n| assert_eq!(g(n, 0xffff_ffff), n.wrapping_add(0x2_0000_0005)));
            });
        }
    });
    let host = Host::new(b.region.clone());
    assert_eq!((host.counts(1).hits, host.counts(2).hits), (200_000, 20));
    b.enable(1, false);
    assert_eq!(f(1, 1), 10);
    assert_eq!(host.counts(1).hits, 200_000);
}

#[test]
fn entries_have_numbers_fields_and_texts_and_none_is_lost() {
    let mut b = Bench::new(4);
    let (at, f) = b.function(SUM);
    let field = |steps: &[i32], width| Value {
        steps: steps.to_vec(),
        width,
        ..Value::of(Base::Register(Register::Rdi))
    };
    let items = vec![
        Item::Value(Value::argument(1).unwrap()),
        Item::Value(field(&[8], 2)),
        Item::Value(field(&[0, 1], 1)),
        Item::Text { at: field(&[0], 8), max: 16 },
        Item::Text { at: Value::of(Base::Address(16)), max: 16 },
        // Bits 9 to 13 of a field, and a text that lies in the structure itself.
        Item::Value(Value { shift: 1, bits: 5, ..field(&[9], 1) }),
        Item::Text { at: Value { plus: 16, ..field(&[], 8) }, max: 8 },
    ];
    b.probe(1, at, &[], Act::Record(items.clone()), true);
    let text = c"a name that is longer";
    let structure = [text.as_ptr() as u64, 0x1234_5678_9abc_def0, u64::from_le_bytes(*b"inside\0\0")];
    const CALLS: u64 = 50_000;
    let pointer = structure.as_ptr() as u64;
    let caller =
        std::thread::spawn(move || (0..CALLS).for_each(|n| assert_eq!(f(pointer, n), pointer + n * 2 + 7)));
    let mut host = Host::new(b.region.clone());
    let (mut n, mut last) = (0, None);
    while n + host.counts(1).lost < CALLS {
        host.entries(|e| {
            let Read::Number(number) = e.values(&items)[0] else { panic!("{e:?}") };
            assert!(number < CALLS && last < Some(number));
            last = Some(number);
            let want = [
                Read::Number(number),
                Read::Number(0xdef0),
                Read::Number(b' '.into()),
                Read::Text(b"a name that is l".to_vec()),
                Read::Unread,
                Read::Number(0xde >> 1 & 31),
                Read::Text(b"inside".to_vec()),
            ];
            assert_eq!((e.probe, e.values(&items)), (1, want.to_vec()));
            n += 1;
        });
    }
    caller.join().unwrap();
    // What did not fit, the machine being busy with something else, is counted.
    host.entries(|_| n += 1);
    assert_eq!(n + host.counts(1).lost, CALLS);
    assert_eq!((host.damaged, host.counts(1).hits), (0, n));
}

/// As where a guest is reset: processors were in the midst of entries, and no more is written.
#[test]
fn what_is_behind_an_entry_that_was_never_finished_is_read_when_the_guest_is_over() {
    let mut b = Bench::new(10);
    let (at, f) = b.function(SUM);
    let items = vec![Item::Value(Value::argument(1).unwrap())];
    b.probe(1, at, &[], Act::Record(items.clone()), true);
    let word = [0u64; 2];
    for n in 0..10 {
        assert_eq!(f(word.as_ptr() as u64, n), word.as_ptr() as u64 + n * 2 + 7);
    }
    // The third, the sixth with the seventh, and the last. Each has two cells.
    for n in [2, 5, 6, 9] {
        b.region.set64(RING + 2 * n * CELL + EN_SEQUENCE, 0);
    }
    let mut host = Host::new(b.region.clone());
    let mut seen = Vec::new();
    let mut see = |e: Entry| {
        let Read::Number(n) = e.values(&items)[0] else { panic!("{e:?}") };
        seen.push(n);
    };
    assert_eq!((host.entries(&mut see), host.rest(&mut see), host.rest(&mut see)), (2, 4, 0));
    assert_eq!((seen, host.damaged), (vec![0, 1, 3, 4, 7, 8], 3));
}

#[test]
fn any_instruction_is_displaced_with_its_flags() {
    let mut b = Bench::new(5);
    // cmp rdi, rsi; mov eax, 1 (displaced, five bytes); jb +5; mov eax, 2; ret
    let (at, f) = b.function(&[0x48, 0x39, 0xf7, 0xb8, 1, 0, 0, 0, 0x72, 5, 0xb8, 2, 0, 0, 0, 0xc3]);
    let condition = [Condition { value: Value::argument(0).unwrap(), compare: Compare::Greater, with: 2 }];
    b.probe(1, at + 3, &condition, Act::Count, false);
    assert_eq!([f(1, 2), f(2, 1), f(3, 3), f(3, 4)], [1, 2, 2, 1]);
    assert_eq!(Host::new(b.region.clone()).counts(1).hits, 2);
    // call next; next: pop rax; ret - the address that a called function sees is that behind the call
    let (at, g) = b.function(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]);
    b.probe(2, at, &[], Act::Count, false);
    assert_eq!(g(0, 0), at + 5);
    // A handler after the instruction sees what it did.
    let (at, h) = b.function(&[0x48, 0xc7, 0xc0, 5, 0, 0, 0, 0xc3]);
    let displaced = b.decode(at);
    let stub = |id| Stub { id, conditions: &[], act: &Act::Call, at_entry: false };
    let entry = b.put(|m, to| m.site(to, &displaced, &stub(3), None, Some(&stub(4))).unwrap());
    b.enable(3, true);
    b.enable(4, true);
    b.patch(at, entry);
    let _server = b.serve(move |taken, r| {
        assert_eq!(taken.registers.rip, if taken.probe == 3 { at } else { at + 7 });
        if taken.probe == 4 {
            r.set(Register::Rax, r.get(Register::Rax) * 3);
        }
        Answer::Changed
    });
    assert_eq!(h(0, 0), 15);
}

#[test]
fn returns_are_seen_with_what_was_saved_also_under_recursion() {
    let mut b = Bench::new(6);
    // fact(n): nop5; cmp rdi,1; jbe one; push rdi; dec rdi; call fact; pop rdi; imul rax,rdi; ret; one: mov eax,1; ret
    let code = [
        0x0f, 0x1f, 0x44, 0, 0, 0x48, 0x83, 0xff, 1, 0x76, 15, 0x57, 0x48, 0xff, 0xcf, 0xe8, 0xec, 0xff,
        0xff, 0xff, 0x5f, 0x48, 0x0f, 0xaf, 0xc7, 0xc3, 0xb8, 1, 0, 0, 0, 0xc3,
    ];
    let (at, f) = b.function(&code);
    assert_eq!(f(10, 0), 3_628_800);
    let items =
        vec![Item::Value(Value::of(Base::Saved(0))), Item::Value(Value::of(Base::Result)), Item::Duration];
    b.probe_return(1, at, Act::Record(items.clone()), &[Value::argument(0).unwrap()], false, 8);
    assert_eq!(f(5, 0), 120);
    let mut host = Host::new(b.region.clone());
    let (mut got, mut before) = (Vec::new(), 0);
    host.entries(|e| {
        let values = e.values(&items);
        let [Read::Number(n), Read::Number(result), Read::Number(ticks)] = values[..] else {
            panic!("{values:?}")
        };
        assert!(ticks > before, "an outer call lasts longer: {ticks} after {before}");
        before = ticks;
        got.push((n, result));
    });
    assert_eq!(got, [(1, 1), (2, 2), (3, 6), (4, 24), (5, 120)]);
    // More open calls than it has room for: the innermost are not seen, and counted.
    assert_eq!(f(10, 0), 3_628_800);
    assert_eq!(host.counts(1).no_return, 2);
    let mut n = 0;
    host.entries(|_| n += 1);
    assert_eq!(n, 8);
    assert!((0..8).all(|n| b.region.get32(INSTANCES + n * INSTANCE_SIZE) == IN_FREE));
}

#[test]
fn what_cannot_be_read_at_the_entry_is_not_read_at_the_return() {
    let mut b = Bench::new(8);
    let (at, f) = b.function(SUM);
    let items = vec![
        Item::Value(Value::of(Base::Saved(0))),
        Item::Value(Value::of(Base::Saved(1))),
        Item::Value(Value::of(Base::Result)),
    ];
    let behind = Value { steps: vec![0], ..Value::argument(0).unwrap() };
    b.probe_return(1, at, Act::Record(items.clone()), &[behind, Value::argument(1).unwrap()], false, 1);
    let there = 77u64;
    let pointer = &raw const there as u64;
    let mut got = Vec::new();
    for rdi in [0, pointer, 8, pointer] {
        assert_eq!(f(rdi, 3), rdi + 13);
    }
    Host::new(b.region.clone()).entries(|e| got.push(e.values(&items)));
    let want = |first, rdi| vec![first, Read::Number(3), Read::Number(rdi + 13)];
    let all =
        [(Read::Unread, 0), (Read::Number(77), pointer), (Read::Unread, 8), (Read::Number(77), pointer)];
    assert_eq!(got, all.map(|(first, rdi)| want(first, rdi)));
}

#[test]
fn a_number_that_lies_in_two_pages_is_read() {
    let mut b = Bench::new(14);
    let (at, f) = b.function(SUM);
    let data = b.functions + 0x10_0000;
    map(data, 2 * 4096, None);
    let bytes: Vec<u8> = (0..32).map(|n| 0x91u8.wrapping_add(n * 7)).collect();
    // SAFETY: within the two pages that were mapped just now.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (data + 4096 - 16) as *mut u8, 32) };
    let number = |width, signed| Value { steps: vec![0], width, signed, ..Value::argument(0).unwrap() };
    let all: Vec<Value> =
        [1, 2, 4, 8].into_iter().flat_map(|w| [number(w, false), number(w, true)]).collect();
    let items: Vec<Item> = all.iter().cloned().map(Item::Value).collect();
    b.probe(1, at, &[], Act::Record(items.clone()), true);
    for n in 0..=16 {
        let place = data + 4096 - 16 + n;
        assert_eq!(f(place, 3), place + 13);
    }
    let mut n = 0;
    Host::new(b.region.clone()).entries(|e| {
        let want = all.iter().map(|v| {
            let mut read = |from: u64, to: &mut [u8]| {
                let at = (from - (data + 4096 - 16)) as usize;
                to.copy_from_slice(&bytes[at..at + to.len()]);
                true
            };
            Read::Number(v.read_outside(|_| Some(data + 4096 - 16 + n), &mut read).unwrap())
        });
        assert_eq!(e.values(&items), want.collect::<Vec<_>>(), "{n} bytes on");
        n += 1;
    });
    assert_eq!(n, 17);
}

#[test]
fn a_handler_at_entry_and_return_can_change_the_result_and_refuse_the_return() {
    let mut b = Bench::new(7);
    let (at, f) = b.function(SUM);
    b.probe_return(1, at, Act::Call, &[], true, 4);
    let _server = b.serve(move |taken, r| match taken.probe {
        1 if r.get(Register::Rdi) == 1 => Answer::NoReturn,
        1 => Answer::GoOn,
        _ => {
            r.set(Register::Rax, r.get(Register::Rax) + 1000);
            Answer::Changed
        }
    });
    std::thread::scope(|t| {
        for _ in 0..2 {
            t.spawn(|| {
                (0..2_000u64).for_each(|n| assert_eq!(f(n, 0), n + 7 + if n == 1 { 0 } else { 1000 }))
            });
        }
    });
    let host = Host::new(b.region.clone());
    assert_eq!((host.counts(1).hits + host.counts(1).missed, host.counts(2).hits), (0, 3_998));
}
