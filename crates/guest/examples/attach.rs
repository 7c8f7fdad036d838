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
    Ok(())
}
