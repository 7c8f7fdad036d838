//! Attaches to a guest and prints what it found: `attach PATH|PID|NAME`.

use kpat_guest::{Guest, Target};

fn main() -> Result<(), kpat_guest::Error> {
    let target = std::env::args().nth(1).unwrap_or_default();
    let began = std::time::Instant::now();
    let g = Guest::attach(&Target::parse(&target))?;
    println!("{} ({}) attached in {:?}", g.name(), g.pid(), began.elapsed());
    let m = g.memory();
    println!(
        "{:?} {:?} isolated {} mapped {:?}",
        g.accelerator(),
        m.kernel_space(),
        m.isolated(),
        m.mapped()
    );
    let r = g.registers(0)?;
    println!("idt {:#x} -> {:x?}", r.idt_base, m.translate(r.idt_base)?);
    match std::env::args().nth(2).as_deref() {
        Some("gdb") => debug(&g),
        Some("read") => read(&g),
        Some("tasks") => tasks(&g),
        Some("symbols") => symbols(&g),
        _ => Ok(()),
    }
}

/// What a reading of 64 bytes costs, by kernel and by physical address: CPU time, so that who else is busy here does not count.
fn read(g: &Guest) -> Result<(), kpat_guest::Error> {
    const N: u64 = 1_000_000;
    let (m, mut piece) = (g.memory(), [0; 64]);
    let began = cpu_ns();
    let s = g.symbols()?;
    println!("symbols {:?}, CPU {} ms", s.times(), (cpu_ns() - began) / 1_000_000);
    let at = s.parse("linux_banner")?;
    let physical = m.translate(at)?.physical;
    let began = cpu_ns();
    for _ in 0..N {
        m.read(at, &mut piece)?;
    }
    println!("by kernel address {} ns", (cpu_ns() - began) / N);
    let began = cpu_ns();
    for _ in 0..N {
        m.read_physical(physical, &mut piece)?;
    }
    println!("by physical address {} ns", (cpu_ns() - began) / N);
    Ok(())
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Processes, and the running task of each processor.
fn tasks(g: &Guest) -> Result<(), kpat_guest::Error> {
    let tasks = g.tasks()?;
    for v in 0..g.vcpus() {
        println!("{v}: {:?}", tasks.current(v)?);
    }
    let began = std::time::Instant::now();
    let all = tasks.processes()?;
    println!("{} in {:?}", all.len(), began.elapsed());
    for p in all {
        println!("{} {} {} {}", p.task.tgid, p.task.comm, p.threads, p.hidden());
    }
    Ok(())
}

/// All symbols as `/proc/kallsyms` has them.
fn symbols(g: &Guest) -> Result<(), kpat_guest::Error> {
    let s = g.symbols()?;
    eprintln!("{:?}\n{:?} base {:#x} end {:#x}", s.times(), s.layout(), s.base(), s.end());
    eprintln!("{} btf {} {:?}", s.banner(), s.btf().is_some(), s.modules());
    eprintln!("{:?} {:?}", s.member("task_struct.comm"), s.member("sk_buff.len"));
    let mut lines = String::new();
    for s in s.table().iter() {
        let module = s.module.map_or(String::new(), |m| format!("\t[{m}]"));
        lines.push_str(&format!("{:016x} {} {}{module}\n", s.address, s.kind, s.name));
    }
    print!("{lines}");
    Ok(())
}

/// A session of the debugger: how long the guest stands for it.
fn debug(g: &Guest) -> Result<(), kpat_guest::Error> {
    let began = std::time::Instant::now();
    let mut gdb = g.gdb()?;
    println!("session {:?}", began.elapsed());
    let mut code = [0; 16];
    let r = gdb.registers(0)?;
    gdb.read(r.rip, &mut code)?;
    println!("rip {:#x}: {code:02x?}", r.rip);
    for _ in 0..100 {
        let again = std::time::Instant::now();
        gdb.step(0)?;
        if again.elapsed().as_millis() > 100 {
            println!("a step took {:?}", again.elapsed());
        }
    }
    gdb.resume()?;
    if let Some(held) = std::env::args().nth(3) {
        if held == "stopped" {
            gdb.interrupt()?;
        }
        println!("held");
        std::thread::sleep(std::time::Duration::from_secs(30));
    }
    println!("{:?}", gdb.wait(std::time::Duration::from_millis(20))?);
    println!("{:?}", gdb.interrupt()?);
    gdb.detach()
}
