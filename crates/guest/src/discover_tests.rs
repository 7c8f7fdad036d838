use super::*;

fn read(line: &str) -> Asked {
    Asked::read(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
}

#[test]
fn command_lines() {
    let a = read(
        "-name vm,,1,debug-threads=on -m 2G -smp 2,cores=2 -accel tcg,thread=multi -qmp unix:q.sock,server=on,wait=off -serial unix:c.sock",
    );
    let want = Asked {
        name: "vm,1".into(),
        accelerator: "tcg".into(),
        memory_bytes: Some(2 << 30),
        vcpus: Some(2),
        qmp: vec!["q.sock".into()],
        sockets: vec!["c.sock".into()],
    };
    assert_eq!(a, want);
    let a = read(
        "-name guest=g2 -machine q35,accel=kvm -m size=512M,slots=2 -smp cpus=3 -chardev socket,id=mon0,path=/r/m.sock,server=on \
         -chardev socket,id=con,path=/r/c.sock -mon chardev=mon0,mode=control -mon chardev=con,mode=readline",
    );
    assert_eq!((a.name.as_str(), a.accelerator.as_str()), ("g2", "kvm"));
    assert_eq!((a.memory_bytes, a.vcpus), (Some(512 << 20), Some(3)));
    assert_eq!((a.qmp, a.sockets), (vec!["/r/m.sock".into()], vec!["/r/c.sock".into()]));
    assert_eq!(read("-m 300").memory_bytes, Some(300 << 20));
    assert_eq!(read("-m").memory_bytes, None);
    assert_eq!(size("99999999999999999999T"), None);
}

#[test]
fn lines_of_the_table_of_sockets() {
    let mine: BTreeSet<String> = ["1535792".to_owned()].into();
    let line = |flags: &str, inode: u32| {
        format!("00000000d480b965: 00000002 00000000 {flags} 0001 01 {inode} /run/a b.sock")
    };
    assert_eq!(listener(&line("00010000", 1_535_792), &mine), Some("/run/a b.sock".into()));
    assert_eq!(listener(&line("00000000", 1_535_792), &mine), None);
    assert_eq!(listener(&line("00010000", 7), &mine), None);
}

#[test]
fn this_process_is_no_qemu() {
    assert!(one(std::process::id()).is_err());
    assert!(all().iter().all(|f| f.pid != std::process::id()));
}

/// Somebody who listens and is no QEMU with our socket among its own is found by the kernel's table.
#[test]
fn sockets_that_a_process_listens_on() {
    let path = std::env::temp_dir().join(format!("kpat-guest-listen-{}.sock", std::process::id()));
    let _ = fs::remove_file(&path);
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(listening(std::process::id()).contains(&path));
    fs::remove_file(&path).unwrap();
}
