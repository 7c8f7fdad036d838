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
        _ => Ok(()),
    }
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
