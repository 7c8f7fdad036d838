//! Every object of the kernel side compiles for every processor that bpf/arch has, and what it takes from there is right: registers by the ABI,
//! addresses of real kernels, records that are committed by a release. Nothing here runs on another processor than this one: functions of bpf/arch
//! run in a small interpreter, objects are looked at.

#[path = "../compile.rs"]
mod compile;

use kpat_probe::btf::{Btf, kind};
use kpat_probe::elf;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const X86: &str = "x86";
const ARM64: &str = "arm64";

fn bpf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf")
}

/// Compiles into a folder of the test's own; the object's bytes.
fn compiled(test: &str, processor: &str, source: &Path, name: &str, defines: &[&str]) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test).join(processor);
    std::fs::create_dir_all(&folder).expect("a folder for objects");
    let object = folder.join(name);
    compile::compile(&compile::clang(), &bpf(), processor, defines, source, &object);
    std::fs::read(object).expect("the object was written")
}

/// The processor that the crate is built for.
fn native() -> &'static str {
    let known = compile::PROCESSORS.into_iter().find(|(name, _)| *name == std::env::consts::ARCH);
    known.expect("a processor that the crate can be built for").1
}

/// All objects of a processor, compiled once for all tests; those of the one that the crate is built for are the build's.
fn objects(processor: &'static str) -> impl Iterator<Item = (compile::Object, &'static [u8])> {
    type Compiled = (&'static str, compile::Object, Vec<u8>);
    static ALL: LazyLock<Vec<Compiled>> = LazyLock::new(|| {
        let each = |processor: &'static str| {
            compile::objects().into_iter().map(move |o @ (source, variant, defines)| {
                let from = bpf().join(format!("{source}.bpf.c"));
                let name = format!("{source}-{variant}.bpf.o");
                let built = Path::new(env!("OUT_DIR")).join(&name);
                let bytes = if processor == native() {
                    std::fs::read(built).expect("the build's object")
                } else {
                    compiled("objects", processor, &from, &name, defines)
                };
                (processor, o, bytes)
            })
        };
        compile::PROCESSORS.into_iter().flat_map(|(_, processor)| each(processor)).collect()
    });
    ALL.iter().filter(move |(p, ..)| *p == processor).map(|(_, o, bytes)| (*o, &bytes[..]))
}

#[derive(Clone, Copy, Debug)]
struct Instruction {
    op: u8,
    dst: usize,
    src: usize,
    off: i16,
    imm: i32,
}

const STORE: u8 = 0x7b; // BPF_STX | BPF_MEM | BPF_DW
const ATOMIC: u8 = 0xdb; // BPF_STX | BPF_ATOMIC | BPF_DW
const EXCHANGE: i32 = 0xe1;
const COMPARE_EXCHANGE: i32 = 0xf1;

impl Instruction {
    fn is_atomic(self, what: i32) -> bool {
        self.op == ATOMIC && self.imm == what
    }
}

/// The functions of an object that have code.
fn functions(object: &[u8]) -> Vec<(String, Vec<Instruction>)> {
    let map = elf::map(object).expect("an ELF file");
    let code = |name: &str| name == ".text" || name == "kprobe" || name.contains('/') || name.contains('+');
    let sections: Vec<_> =
        map.sections.iter().filter(|s| code(&s.name) && !s.name.starts_with(".rel")).collect();
    let mut found: Vec<_> = map
        .symbols
        .iter()
        .filter(|(_, s)| {
            s.size > 0 && sections.iter().any(|x| (x.offset..x.offset + x.size).contains(&s.offset))
        })
        .map(|(name, s)| {
            let words = object[s.offset..s.offset + s.size].chunks_exact(8);
            let instruction = |b: &[u8]| Instruction {
                op: b[0],
                dst: (b[1] & 15) as usize,
                src: (b[1] >> 4) as usize,
                off: i16::from_le_bytes([b[2], b[3]]),
                imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]),
            };
            (name.clone(), words.map(instruction).collect())
        })
        .collect();
    found.sort_by(|a: &(String, Vec<_>), b| a.0.cmp(&b.0));
    found
}

/// Runs a function without calls and stack; a load from `r1 + n` gives n. Returns r0 and what was stored, with the instruction that did.
fn run(code: &[Instruction], r1: u64, r2: u64) -> (u64, Option<(Instruction, u64)>) {
    let mut r = [0u64; 11];
    (r[1], r[2]) = (r1, r2);
    let (mut pc, mut stored) = (0, None);
    for _ in 0..1000 {
        let i = code[pc];
        pc += 1;
        let operand = if i.op & 8 == 0 { i.imm as i64 as u64 } else { r[i.src] };
        match i.op & 7 {
            _ if i.op == 0x95 => return (r[0], stored),
            _ if i.op == 0x18 => {
                r[i.dst] = i.imm as u32 as u64 | (code[pc].imm as u32 as u64) << 32;
                pc += 1;
            }
            1 if i.op == 0x79 => r[i.dst] = r[i.src].wrapping_add(i.off as u64).wrapping_sub(r1),
            3 if i.op == STORE || i.is_atomic(EXCHANGE) => {
                assert_eq!(r[i.dst].wrapping_add(i.off as u64), r1, "stores elsewhere");
                stored = Some((i, r[i.src]));
            }
            class @ (4 | 7) => {
                let wide = class == 7;
                let (a, b) =
                    if wide { (r[i.dst], operand) } else { (r[i.dst] as u32 as u64, operand as u32 as u64) };
                let shift = b & if wide { 63 } else { 31 };
                let v = match i.op >> 4 {
                    0x0 => a.wrapping_add(b),
                    0x1 => a.wrapping_sub(b),
                    0x4 => a | b,
                    0x5 => a & b,
                    0x6 => a << shift,
                    0x7 => a >> shift,
                    0x8 => a.wrapping_neg(),
                    0xa => a ^ b,
                    0xb => b,
                    0xc if wide => (a as i64 >> shift) as u64,
                    0xc => (a as i32 >> shift) as u64,
                    other => panic!("operation {other:#x}"),
                };
                r[i.dst] = if wide { v } else { v as u32 as u64 };
            }
            class @ (5 | 6) => {
                let wide = class == 5;
                let (a, b) =
                    if wide { (r[i.dst], operand) } else { (r[i.dst] as u32 as u64, operand as u32 as u64) };
                let signed = |v: u64| if wide { v as i64 } else { i64::from(v as i32) };
                let taken = match i.op >> 4 {
                    0x0 => true,
                    0x1 => a == b,
                    0x2 => a > b,
                    0x3 => a >= b,
                    0x4 => a & b != 0,
                    0x5 => a != b,
                    0x6 => signed(a) > signed(b),
                    0x7 => signed(a) >= signed(b),
                    0xa => a < b,
                    0xb => a <= b,
                    0xc => signed(a) < signed(b),
                    0xd => signed(a) <= signed(b),
                    other => panic!("jump {other:#x}"),
                };
                if taken {
                    pc = pc.wrapping_add(i.off as usize);
                }
            }
            _ => panic!("{i:?}"),
        }
    }
    panic!("does not end")
}

/// The functions of processors.bpf.c.
struct Arch(Vec<(String, Vec<Instruction>)>);

impl Arch {
    fn of(test: &str, processor: &str) -> Arch {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processors.bpf.c");
        Arch(functions(&compiled(test, processor, &source, "processors.bpf.o", &["-DKPAT_DIRECT"])))
    }

    fn code(&self, name: &str) -> &[Instruction] {
        &self.0.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    fn call(&self, name: &str, argument: u64) -> u64 {
        run(self.code(name), argument, 0).0
    }
}

/// An object for each processor, of each source and variant; for this processor the one that is in the program.
#[test]
fn every_object_compiles_for_every_processor() {
    let mut n = 0;
    for (name, processor) in compile::PROCESSORS {
        for (o, bytes) in objects(processor) {
            assert!(functions(bytes).iter().any(|(_, code)| code.len() > 50), "{processor} {o:?}");
            if name == std::env::consts::ARCH {
                let shipped = format!("{}/{}-{}.bpf.o", env!("OUT_DIR"), o.0, o.1);
                let built = std::fs::read(&shipped).expect("the build script made it");
                assert!(bytes == built, "not as the build script makes it: {shipped}");
            }
            n += 1;
        }
    }
    assert_eq!(n, 30);
}

/// Where the ABI has arguments and result: by the kernel's description of the registers to debuggers (struct user_regs_struct of x86-64, struct
/// user_pt_regs of arm64: 31 registers, sp, pc, pstate), and by libbpf's headers.
#[test]
fn registers_are_where_the_abi_has_them() {
    #[cfg(target_arch = "x86_64")]
    {
        use libc::user_regs_struct as r;
        use std::mem::offset_of;
        let listed = [
            offset_of!(r, rdi),
            offset_of!(r, rsi),
            offset_of!(r, rdx),
            offset_of!(r, rcx),
            offset_of!(r, r8),
            offset_of!(r, r9),
        ];
        assert_eq!(listed, [112, 104, 96, 88, 72, 64]);
        assert_eq!((offset_of!(r, rax), offset_of!(r, rsp)), (80, 152));
    }
    // at the return of x86-64 the return address is no longer on the stack
    let expected =
        [(X86, [112, 104, 96, 88, 72, 64], 80, 152, 144), (ARM64, [0, 8, 16, 24, 32, 40], 0, 31 * 8, 31 * 8)];
    const REGISTERS: u64 = 0xffff_8000_1234_0000;
    for (processor, arguments, result, at_entry, at_return) in expected {
        let arch = Arch::of("registers", processor);
        for (i, at) in arguments.into_iter().enumerate() {
            assert_eq!(arch.call(&format!("argument_{i}"), REGISTERS), at, "{processor}, argument {i}");
        }
        assert_eq!(arch.call("result", REGISTERS), result, "{processor}");
        assert_eq!(arch.call("key_at_entry", REGISTERS), at_entry, "{processor}");
        assert_eq!(arch.call("key_at_return", REGISTERS), at_return, "{processor}");
        for (ours, theirs) in
            (0..5).map(|i| (format!("argument_{i}"), format!("libbpf_argument_{i}"))).chain([
                ("result".into(), "libbpf_result".into()),
                ("key_at_entry".into(), "libbpf_stack".into()),
            ])
        {
            assert_eq!(arch.call(&ours, REGISTERS), arch.call(&theirs, REGISTERS), "{processor}, {ours}");
        }
    }
}

/// Documentation/arch/x86/x86_64/mm.rst and Documentation/arch/arm64/memory.rst, tagged-pointers.rst.
#[test]
fn kernel_addresses_are_told_from_numbers_under_every_paging_mode() {
    let both = [
        (0, false),
        (0x0101_05dc_0000_0900, false), // UDP's scratch word in place of skb->dev: flags, length, size
        (0x0001_0040_0000_0300, false),
        (0x0000_7fff_f7dd_1000, false), // user space, 47 bits
    ];
    let x86 = [
        (0xffff_8880_0b5c_3000, true),  // direct map, four levels
        (0xff11_0000_0b5c_3000, true),  // five levels
        (0xffa0_0000_0123_4000, true),  // vmalloc, five levels
        (0xffff_ffff_8242_a0c0, true),  // kernel text
        (0x00ff_ffff_ffff_f000, false), // the end of user space, five levels
    ];
    let arm64 = [
        (0xffff_0000_0b5c_3000, true),  // linear map, 48 bits
        (0xffff_ff80_0b5c_3000, true),  // 39 bits: three levels
        (0xfff0_0000_0b5c_3000, true),  // 52 bits: 64K pages, or five levels of 4K
        (0xffff_8000_8123_4000, true),  // kernel image
        (0xf5ff_0000_0b5c_3000, true),  // KASAN's tag in hardware
        (0x34ff_0000_0b5c_3000, true),  // in software: any
        (0x0000_ffff_ffff_f000, false), // the end of user space, 48 bits
        (0x000f_ffff_ffff_f000, false), // 52 bits
        (0xb400_ffff_8a5c_3010, false), // user space, with the tag that Android's allocator gives
    ];
    for (processor, own) in [(X86, &x86[..]), (ARM64, &arm64)] {
        let arch = Arch::of("addresses", processor);
        for (p, is) in both.iter().chain(own) {
            assert_eq!(arch.call("is_kernel_address", *p) != 0, *is, "{processor} {p:#x}");
        }
    }
}

/// A store on x86-64, which keeps the order of stores; on arm64 an exchange.
#[test]
fn a_release_is_one_ordered_store() {
    for (processor, ordered) in [(X86, STORE), (ARM64, ATOMIC)] {
        let arch = Arch::of("release", processor);
        let (_, stored) = run(arch.code("release"), 0x1000, 0x1122_3344_5566_7788);
        let (by, value) = stored.expect("something is stored");
        assert_eq!((by.op, value), (ordered, 0x1122_3344_5566_7788), "{processor}");
    }
}

/// On arm64 whoever takes room in a ring commits by an exchange. Room is taken in up to four compare-and-swaps, which have other uses only in the
/// functions named here.
#[test]
fn records_are_committed_by_an_exchange_on_arm64() {
    const OTHER_USES: [&str; 7] = [
        "packet_insert",
        "learn_cookie",
        "kprobe_session",
        "kprobe_entry",
        "kprobe_return",
        "fentry_",
        "fexit_",
    ];
    // The others write no records: one sends announcements, one keeps sums.
    let has_ring = |o: &compile::Object| !["announce", "profile"].contains(&o.0);
    let mut commits = 0;
    for (o, bytes) in objects(ARM64).filter(|(o, _)| has_ring(o)) {
        for (name, code) in functions(bytes) {
            let count = |what| code.iter().filter(|i| i.is_atomic(what)).count();
            let (takes, exchanges) = (count(COMPARE_EXCHANGE), count(EXCHANGE));
            commits += exchanges;
            let other = o.0 == "kpat" && OTHER_USES.iter().any(|n| name.starts_with(n));
            assert!(other || takes <= 4 * exchanges, "{o:?}: {name} takes {takes}, {exchanges} exchanges");
        }
    }
    let x86 = objects(X86)
        .filter(|(o, _)| has_ring(o))
        .flat_map(|(_, bytes)| functions(bytes))
        .flat_map(|(_, code)| code);
    let on_x86 = x86.filter(|i| i.is_atomic(EXCHANGE)).count();
    assert!(commits > 8 * 20, "{commits} in eight objects");
    assert_eq!(on_x86, 0, "an exchange costs twenty times a store there");
}

/// What an object wants to know of the running kernel's types: members by their names, and types.
fn relocations(object: &[u8]) -> BTreeSet<String> {
    let map = elf::map(object).expect("an ELF file");
    let section = |name: &str| {
        let s = map.sections.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no {name}"));
        &object[s.offset..s.offset + s.size]
    };
    let btf = Btf::parse("object", section(".BTF"), None).expect("BTF");
    let ext = section(".BTF.ext");
    let word = |at: usize| u32::from_le_bytes(ext[at..at + 4].try_into().expect("four bytes")) as usize;
    // struct btf_ext_header: its own length at 4, the relocations' place and length at 24
    let (from, length) = (word(4) + word(24), word(28));
    if length == 0 {
        return BTreeSet::new();
    }
    let record = word(from);
    let (mut at, mut found) = (from + 4, BTreeSet::new());
    while at < from + length {
        let n = word(at + 4);
        at += 8;
        for r in (0..n).map(|i| at + i * record) {
            let (id, path, what) = (word(r + 4) as u32, btf.str(word(r + 8) as u32), word(r + 12));
            found.insert(if what < 6 { member(&btf, id, path) } else { format!("type {}", btf.name_of(id)) });
        }
        at += n * record;
    }
    found
}

/// `0:1:2` as names: the first is an index of what is pointed to.
fn member(btf: &Btf, id: u32, path: &str) -> String {
    let mut name = btf.name_of(btf.strip(id)).to_string();
    let mut id = btf.strip(id);
    for step in path.split(':').skip(1).map(|n| n.parse::<usize>().expect("a number")) {
        id = if btf.get(id).is_some_and(|t| t.kind == kind::ARRAY) {
            name += &format!("[{step}]");
            btf.array(id).expect("an array").0
        } else {
            let m = btf.members(id)[step];
            name += &format!(".{}", btf.str(m.name_off));
            m.type_id
        };
        id = btf.strip(id);
    }
    name
}

/// But for the place of the preemption count, both want to know the same of a kernel.
#[test]
fn processors_differ_in_where_the_preemption_count_is() {
    for ((o, x86), (_, arm64)) in objects(X86).zip(objects(ARM64)) {
        let [x86, arm64] = [x86, arm64].map(relocations);
        if o.0 == "programs" {
            // of the ports of a descriptor's socket
            assert!(x86.contains("socket___open.sk"), "{x86:?}");
            assert_eq!(x86, arm64, "{o:?}");
            continue;
        }
        assert!(x86.contains("sk_buff.len"), "{o:?}: {x86:?}");
        let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
        let counted = !o.1.ends_with("traced");
        let of = |name: &str| if counted { vec![name.to_string()] } else { Vec::new() };
        assert_eq!(only(&x86, &arm64), of("pcpu_hot.preempt_count"), "{o:?}");
        let mut on_arm64 = of("task_struct___arm64.thread_info.preempt.count");
        // These know the system call that a task is in.
        if ["profile", "kpat"].contains(&o.0) {
            // x86 has it among the registers, whose places are fixed.
            let registers = ["pt_regs___syscall.orig_x0", "pt_regs___syscall.syscallno"];
            on_arm64.splice(0..0, registers.map(String::from));
        }
        assert_eq!(only(&arm64, &x86), on_arm64, "{o:?}");
    }
}

/// No other file of bpf/ knows a processor, and none orders its stores by hand.
#[test]
fn processors_are_in_their_folder() {
    let folders = [bpf(), bpf().join("include")];
    let files = folders.iter().flat_map(|f| std::fs::read_dir(f).expect("bpf"));
    let files: Vec<PathBuf> =
        files.map(|f| f.expect("a file").path()).filter(|f| f.extension().is_some()).collect();
    assert!(files.len() > 25, "{files:?}");
    for f in files {
        let text = std::fs::read_to_string(&f).expect("text");
        for (n, line) in text.lines().enumerate() {
            let of_arch = ["__TARGET_ARCH", "pcpu_hot", "__preempt_count", "__sync_lock", "barrier();"];
            let named = of_arch.iter().find(|w| line.contains(**w));
            let store = line.split_once(" = ").filter(|(to, _)| to.contains("*(volatile"));
            assert!(store.is_none() && named.is_none(), "{}:{}: {line}", f.display(), n + 1);
        }
    }
}
