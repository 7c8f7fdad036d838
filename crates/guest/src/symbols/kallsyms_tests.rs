use super::*;

/// A kernel's tables as a linker would lay them out, of each order that there is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// 6.1, without and with the table of sequences.
    First(bool),
    /// 6.4 to 6.14.
    Second,
    /// 7.x, its tables not aligned to eight bytes.
    Third,
}

const BASE: u64 = 0xffff_ffff_9aa0_0000;

/// Addresses, kinds and names; the first are per CPU where they begin at zero.
fn names(order: Order) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    if order != Order::Third {
        all.extend((0..5).map(|i| (i * 0x40, format!("Aper_cpu_{i}"))));
    }
    all.push((BASE, "T_text".into()));
    all.extend((0..1500).map(|i| (BASE + 0x1000 + i * 0x30, format!("tfunction_{i}_{:x}", i * 7919))));
    // Longer than 127 tokens: two bytes of length.
    all.push((BASE + 0x1f_0000, format!("D{}", "q".repeat(300))));
    all
}

/// Each byte is a token of its own, but for those above 127: they are pairs that occur.
fn tokens() -> Vec<Vec<u8>> {
    const PAIRS: [&[u8]; 3] = [b"function_", b"per_cpu", b"_1"];
    (0..=255u8)
        .map(|b| match b {
            1..=3 => PAIRS[usize::from(b) - 1].to_vec(),
            33..127 => vec![b],
            b => format!("%{b:02x}").into_bytes(),
        })
        .collect()
}

fn image(order: Order) -> Vec<u8> {
    let all = names(order);
    let tokens = tokens();
    let mut image = vec![0x90; 0x1000];
    let align = |image: &mut Vec<u8>, to: usize| image.resize(image.len().next_multiple_of(to), 0);
    let wide = if order == Order::Third { 4 } else { 8 };
    let relative = BASE;
    let offsets = |image: &mut Vec<u8>| {
        for (a, _) in &all {
            let at = image.len() as u64;
            let word = match order {
                Order::Third => a.wrapping_sub(BASE + at) as u32,
                _ if *a < 1 << 31 => *a as u32,
                _ => (relative.wrapping_sub(1).wrapping_sub(*a)) as u32,
            };
            image.extend(word.to_le_bytes());
        }
    };
    if matches!(order, Order::First(_)) {
        offsets(&mut image);
        align(&mut image, 8);
        image.extend(relative.to_le_bytes());
    }
    image.extend((all.len() as u32).to_le_bytes());
    align(&mut image, wide);
    let names_at = image.len();
    let mut markers = Vec::new();
    for (i, (_, name)) in all.iter().enumerate() {
        if i % 256 == 0 {
            markers.push((image.len() - names_at) as u32);
        }
        let mut rest = name.as_bytes();
        let mut coded = Vec::new();
        while !rest.is_empty() {
            let long = (1..4).find(|t| rest.starts_with(&tokens[*t]));
            let token = long.unwrap_or(usize::from(rest[0]));
            coded.push(token as u8);
            rest = &rest[tokens[token].len()..];
        }
        if coded.len() > 127 {
            image.push(coded.len() as u8 | 0x80);
            image.push((coded.len() >> 7) as u8);
        } else {
            image.push(coded.len() as u8);
        }
        image.extend(coded);
    }
    align(&mut image, wide);
    markers.iter().for_each(|m| image.extend(m.to_le_bytes()));
    if order == Order::First(true) {
        align(&mut image, 8);
        (0..all.len()).for_each(|i| image.extend(&(i as u32 * 37 % 1500).to_be_bytes()[1..]));
    }
    align(&mut image, wide);
    let mut index = Vec::new();
    let tokens_at = image.len();
    for t in &tokens {
        index.push((image.len() - tokens_at) as u16);
        image.extend(t);
        image.push(0);
    }
    align(&mut image, wide);
    index.iter().for_each(|i| image.extend(i.to_le_bytes()));
    if !matches!(order, Order::First(_)) {
        align(&mut image, wide);
        offsets(&mut image);
        if order == Order::Second {
            align(&mut image, 8);
            image.extend(relative.to_le_bytes());
        }
        image.extend(vec![7; all.len() * 3]);
    }
    image.extend([0xcc; 64]);
    image
}

const ORDERS: [Order; 4] = [Order::First(false), Order::First(true), Order::Second, Order::Third];

#[test]
fn every_order_is_read() {
    for order in ORDERS {
        let mut b = Builder::default();
        let layout = read(&image(order), BASE, BASE, &mut b).unwrap_or_else(|e| panic!("{order:?}: {e}"));
        assert_eq!(layout.count, names(order).len());
        assert_eq!(layout.offsets == Offsets::Place, order == Order::Third, "{order:?}");
        assert_eq!(layout.sequence_first, order == Order::First(true), "{order:?}");
        let table = b.build(Vec::new());
        let got: Vec<(u64, String)> =
            table.iter().map(|s| (s.address, format!("{}{}", s.kind, s.name))).collect();
        assert_eq!(got, names(order), "{order:?}");
    }
}

#[test]
fn another_base_or_a_cut_image_is_an_error() {
    for order in ORDERS {
        let whole = image(order);
        let refused = |bytes: &[u8], base: u64| read(bytes, base, base, &mut Builder::default()).is_err();
        assert!(order == Order::Third || refused(&whole, BASE + 0x20_0000), "{order:?}");
        for cut in (0..whole.len() - 64).step_by(401) {
            let bytes = &whole[..cut];
            assert!(
                refused(bytes, BASE) || cut > whole.len() - names(order).len() * 3 - 128,
                "{order:?} {cut}"
            );
        }
    }
    assert!(read(&[], BASE, BASE, &mut Builder::default()).is_err());
}

/// What the fuzz target begins with: a memory in which such an image is mapped. `UPDATE_CORPUS=1` writes it.
#[test]
fn the_corpus_is_made_of_these() {
    use crate::memory::Memory;
    use crate::registers::Registers;
    for (order, name) in ORDERS.into_iter().zip(["6.1", "6.1-sequence", "6.12", "7.2"]) {
        let image = image(order);
        let (tables, first) = ([0x1000u64, 0x2000, 0x3000, 0x4000], 0x6000u64);
        let mut dump = vec![0; first as usize];
        let mut put =
            |at: u64, word: u64| dump[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
        for (i, table) in tables.iter().enumerate().take(3) {
            let place = BASE >> (39 - 9 * i) & 0x1ff;
            put(table + place * 8, tables[i + 1] | 3);
        }
        for page in 0..image.len().div_ceil(4096) as u64 {
            let read_only = if page == 0 { 1 } else { 1 | 1 << 63 };
            put(0x4000 + page * 8, (first + page * 4096) | read_only);
        }
        // The table of interrupts, just before the image's pages, mapped behind them.
        put(0x4000 + 511 * 8, 0x5000 | 3);
        let gate = BASE + 0x10;
        put(0x5000, gate & 0xffff | 0x10 << 16 | 0x8e << 40 | (gate >> 16 & 0xffff) << 48);
        put(0x5008, gate >> 32);
        dump.extend(&image);
        dump.resize(dump.len().next_multiple_of(4096), 0);
        let r = Registers {
            cr0: 1 << 31,
            cr3: 0x1000,
            cr4: 1 << 5,
            efer: 1 << 10,
            idt_base: BASE + 511 * 4096,
            ..Registers::default()
        };
        let memory = Memory::of_dump(&dump, &r).unwrap();
        let symbols = crate::Symbols::read(&memory, &r).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((symbols.base(), symbols.table().len()), (BASE, names(order).len()), "{name}");
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz/corpus/guest_memory")
            .join(name);
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &dump).unwrap();
        }
        assert!(
            std::fs::read(&file).unwrap() == dump,
            "{} is of other tables; UPDATE_CORPUS=1",
            file.display()
        );
    }
}
