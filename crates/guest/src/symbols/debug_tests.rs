//! Judged by binutils: readelf's list of the same file's lines, nm's addresses, addr2line.

use super::elf::{Elf, Source};
use super::lines::{Found, Lines, Search};
use super::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

const ONE: &str = "\
#include \"../include/shared.h\"

int one_global;

int __attribute__((noinline)) one(int n)
{
	one_global = n;
	one_global += shared(n);

	if (n > 3)
		one_global--;
	return one_global;
}

int __attribute__((noinline)) outer(int n)
{
	return one(n) + shared(one_global);
}
";
const SHARED: &str = "\
extern volatile int kept;

static inline __attribute__((always_inline)) int shared(int n)
{
	kept = n;
	return kept * 3;
}
";
const TWO: &str = "\
#include \"../include/shared.h\"

volatile int kept;
int outer(int);

void start(void)
{
	kept = outer(kept);
}
";
const SAME: &str = "extern volatile int kept;\nint NAME(int n)\n{\n\tkept = n;\n\treturn kept;\n}\n";

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kpat-lines-{name}-{}", std::process::id()));
        let folder = Folder(path);
        for (file, text) in [
            ("core/one.c", ONE.to_owned()),
            ("core/two.c", TWO.to_owned()),
            ("include/shared.h", SHARED.to_owned()),
            ("core/same.c", SAME.replace("NAME", "same_of_core")),
            ("side/same.c", SAME.replace("NAME", "same_of_side")),
        ] {
            let path = folder.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn run(&self, program: &str, args: &[&str]) -> String {
        let out = Command::new(program).args(args).current_dir(&self.0).output();
        let out = out.unwrap_or_else(|e| panic!("{program} (gcc, binutils) is needed: {e}"));
        assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Objects of all sources, linked to one file.
    fn build(&self, to: &str, options: &[&str]) -> PathBuf {
        let mut linked: Vec<String> = Vec::new();
        for source in ["core/one.c", "core/two.c", "core/same.c", "side/same.c"] {
            let object = format!("{}.o", source.replace(['/', '.'], "-"));
            self.run(
                "gcc",
                &[&["-c", "-O1", "-fcf-protection=none", "-o", &object, source], options].concat(),
            );
            linked.push(object);
        }
        let mut args = vec!["-nostdlib", "-static", "-no-pie", "-Wl,-e,start,-Ttext=0x401000", "-o", to];
        args.extend(options.iter().filter(|o| o.starts_with("-gz")));
        args.extend(linked.iter().map(String::as_str));
        self.run("gcc", &args);
        self.0.join(to)
    }

    /// By name of the file and line: where statements begin, as readelf lists them.
    fn listed(&self, file: &str) -> BTreeMap<(String, u64), BTreeSet<u64>> {
        let all = self.lines(file);
        assert!(all.len() > 10, "{all:x?}");
        all
    }

    fn lines(&self, file: &str) -> BTreeMap<(String, u64), BTreeSet<u64>> {
        let said = self.run("readelf", &["--debug-dump=decodedline", "-W", file]);
        let mut all: BTreeMap<(String, u64), BTreeSet<u64>> = BTreeMap::new();
        for line in said.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [name, line, address, .., "x"] = words.as_slice()
                && let (Ok(line), Some(Ok(address))) =
                    (line.parse(), address.strip_prefix("0x").map(|a| u64::from_str_radix(a, 16)))
            {
                let name = name.rsplit('/').next().unwrap().to_owned();
                all.entry((name, line)).or_default().insert(address);
            }
        }
        all
    }
}

fn lines_of(path: &Path) -> Lines {
    let source = elf::open(path).unwrap();
    Lines::read(&Elf::read(source.as_ref()).unwrap()).unwrap().unwrap()
}

fn found(lines: &Lines, path: &str, line: u64) -> Found {
    let mut search = Search::new(path, line);
    let code = |a: u64| lines.code.iter().any(|(_, place)| place.contains(&a)).then_some(a);
    lines.search(&mut search, &code).unwrap();
    assert_eq!(search.unread, 0);
    search.found()
}

const WAYS: [&[&str]; 6] = [
    &["-gdwarf-4"],
    &["-gdwarf-5"],
    &["-gdwarf-4", "-gz=zlib"],
    &["-gdwarf-5", "-gz=zlib"],
    &["-gdwarf-5", "-ffunction-sections"],
    &["-gdwarf-5", "-gdwarf64"],
];

#[test]
fn each_line_of_a_program_is_where_readelf_lists_it() {
    let folder = Folder::new("readelf");
    for way in WAYS {
        let path = folder.build("linked", way);
        let listed = folder.listed("linked");
        let lines = lines_of(&path);
        let mut with_code = 0;
        for (file, text) in [("one.c", ONE), ("two.c", TWO), ("shared.h", SHARED)] {
            for line in 1..=text.lines().count() as u64 + 2 {
                let truth = listed.get(&(file.to_owned(), line));
                let next = || listed.keys().find(|(f, l)| f == file && *l > line).map(|(_, l)| *l);
                let last = || listed.keys().rfind(|(f, _)| f == file).map_or(0, |(_, l)| *l);
                match (truth, found(&lines, file, line)) {
                    (Some(truth), Found::Rows { rows, path }) => {
                        assert_eq!(truth, &rows.into_iter().collect(), "{way:?} {file}:{line}");
                        assert!(path.ends_with(file));
                        with_code += 1;
                    }
                    (None, Found::NoCode { next: n, last: l, .. }) => {
                        assert_eq!((next(), last()), (n, l), "{way:?} {file}:{line}")
                    }
                    (truth, other) => panic!("{way:?} {file}:{line}: {truth:x?}, {other:x?}"),
                }
            }
        }
        assert!(with_code > 9, "{with_code}");
    }
}

#[test]
fn a_compressed_section_says_the_same() {
    let folder = Folder::new("packed");
    let path = folder.build("linked", &["-gdwarf-5"]);
    let plain = found(&lines_of(&path), "one.c", 7);
    assert!(matches!(plain, Found::Rows { .. }), "{plain:?}");
    for way in ["zlib", "zstd"] {
        let to = format!("packed-{way}");
        let out = Command::new("objcopy")
            .args([&format!("--compress-debug-sections={way}"), "linked", &to])
            .current_dir(&folder.0)
            .output()
            .unwrap();
        // Binutils before 2.40 knows no zstd.
        if way == "zstd" && !out.status.success() {
            eprintln!("not tested: this objcopy does not compress by zstd");
            continue;
        }
        assert!(out.status.success());
        let packed = folder.0.join(to);
        let sections = folder.run("readelf", &["-SW", packed.to_str().unwrap()]);
        assert!(sections.lines().any(|l| l.contains(" .debug_line ") && l.contains(" C ")), "{sections}");
        assert_eq!(found(&lines_of(&packed), "one.c", 7), plain);
    }
    // What is left when only debug information is kept.
    folder.run("objcopy", &["--only-keep-debug", "linked", "kept"]);
    assert_eq!(found(&lines_of(&folder.0.join("kept")), "one.c", 7), plain);
}

#[test]
fn files_are_named_by_the_end_of_their_paths() {
    let folder = Folder::new("suffix");
    for way in [&["-gdwarf-4"], &["-gdwarf-5"]] {
        let path = folder.build("linked", way);
        let symbols = Symbols::from_file(&path, None).unwrap();
        let no = |text: &str| symbols.place(text).unwrap_err().to_string();
        assert!(no("same.c:4").contains("needs the debug file"), "{}", no("same.c:4"));
        symbols.debug_file(&path, None).unwrap();
        assert!(no("same.c:4").contains("several files"), "{}", no("same.c:4"));
        for (text, function) in
            [("core/same.c:3", "same_of_core"), ("./side/../side/same.c:3", "same_of_side")]
        {
            let place = symbols.place(text).unwrap();
            assert_eq!((place.address, place.begins), (symbols.address(function).unwrap(), true), "{text}");
            assert!(place.line.unwrap().ends_with(text.trim_start_matches("./side/../")));
            let (file, _) = text.rsplit_once(':').unwrap();
            let inside = symbols.place(&format!("{file}:5")).unwrap();
            let said = folder.run("addr2line", &["-e", "linked", &format!("{:x}", inside.address)]);
            assert!(!inside.begins && said.trim().ends_with(&inside.line.unwrap()), "{said}");
        }
        // DWARF 5 has the folder of the compiler beside the lines.
        let absolute = folder.0.join("core/same.c");
        assert!(symbols.place(&format!("{}:3", absolute.display())).is_ok());
        assert!(no("e.c:4").contains("no code of a file e.c"));
        assert!(no("else/same.c:4").contains("; there is "), "{}", no("else/same.c:4"));
        assert!(no("shraed.h:4").contains("; there is shared.h"), "{}", no("shraed.h:4"));
        assert!(
            no("one.c:9").contains("no code at line 9; the next line with code is 10"),
            "{}",
            no("one.c:9")
        );
        assert!(no("one.c:90").contains("the last line with code is 1"), "{}", no("one.c:90"));
    }
}

#[test]
fn a_line_in_several_functions_is_told_apart_by_them() {
    let folder = Folder::new("several");
    let path = folder.build("linked", &["-gdwarf-5"]);
    let symbols = Symbols::from_file(&path, None).unwrap();
    symbols.debug_file(&path, None).unwrap();
    let listed = folder.listed("linked");
    let rows = &listed[&("shared.h".to_owned(), 5)];
    let first = |function: &str| {
        let start = symbols.address(function).unwrap();
        *rows.iter().find(|r| symbols.at(**r).is_some_and(|(s, _)| s.address == start)).unwrap()
    };
    let e = symbols.place("shared.h:5").unwrap_err().to_string();
    for function in ["one", "outer"] {
        let name = symbols.name(first(function));
        assert!(e.contains("in 2 functions") && e.contains(&name), "{e}: {name}");
        assert_eq!(symbols.parse(&name).unwrap(), first(function));
        assert_eq!(symbols.parse(&format!("{function}@shared.h:5")).unwrap(), first(function));
    }
    let e = symbols.place("start@shared.h:5").unwrap_err().to_string();
    assert!(e.contains("no code in start"), "{e}");
}

#[test]
fn what_is_seldom_done_is_of_its_function() {
    let folder = Folder::new("cold");
    let text = "__attribute__((cold, noinline)) void bad(int n) { __asm__ volatile(\"\" : : \"r\"(n)); }\n\
                int start(int n)\n{\n\tif (n > 5) bad(n + 1);\n\treturn n * 3;\n}\n";
    fs::write(folder.0.join("cold.c"), text).unwrap();
    folder.run(
        "gcc",
        &["-g", "-O2", "-nostdlib", "-static", "-no-pie", "-Wl,-e,start", "-o", "cold", "cold.c"],
    );
    let path = folder.0.join("cold");
    let symbols = Symbols::from_file(&path, None).unwrap();
    symbols.debug_file(&path, None).unwrap();
    let (hot, cold) = (symbols.address("start").unwrap(), symbols.address("start.cold").unwrap());
    let rows = &folder.lines("cold")[&("cold.c".to_owned(), 4)];
    assert!(rows.iter().any(|r| *r >= hot) && rows.iter().any(|r| (cold..hot).contains(r)), "{rows:x?}");
    let place = symbols.place("cold.c:4").unwrap();
    assert_eq!(place.address, *rows.iter().find(|r| **r >= hot).unwrap());
    // But it is one of the line's places.
    assert!(place.further.contains(rows.iter().find(|r| (cold..hot).contains(r)).unwrap()));
}

#[test]
fn each_copy_of_an_inlined_line_is_a_place() {
    let folder = Folder::new("copies");
    let text = "extern volatile int kept;\nvolatile int kept;\n\
                static inline __attribute__((always_inline)) void keep(int n)\n{\n\tkept = n;\n}\n\
                void start(int n)\n{\n\tif (n > 5)\n\t\tkeep(n * 3);\n\telse\n\t\tkeep(n + 7);\n}\n";
    fs::write(folder.0.join("copies.c"), text).unwrap();
    folder.run(
        "gcc",
        &["-g", "-O1", "-nostdlib", "-static", "-no-pie", "-Wl,-e,start", "-o", "copies", "copies.c"],
    );
    let path = folder.0.join("copies");
    let symbols = Symbols::from_file(&path, None).unwrap();
    symbols.debug_file(&path, None).unwrap();
    let rows: Vec<u64> = folder.lines("copies")[&("copies.c".to_owned(), 5)].iter().copied().collect();
    assert!(rows.len() > 1, "{rows:x?}");
    let plain = symbols.place("copies.c:5").unwrap();
    assert_eq!((plain.address, plain.further.as_slice()), (rows[0], &rows[1..]));
    for (n, row) in rows.iter().enumerate() {
        for written in [format!("copies.c:5#{}", n + 1), format!("start@copies.c:5#{}", n + 1)] {
            let place = symbols.place(&written).unwrap();
            assert_eq!((place.address, place.further.len()), (*row, rows.len() - 1), "{written}");
            assert!(place.line.unwrap().ends_with("copies.c:5"));
        }
    }
    let e = symbols.place(&format!("copies.c:5#{}", rows.len() + 1)).unwrap_err().to_string();
    assert!(e.contains("fewer places") && e.contains(&symbols.name(rows[1])), "{e}");
    for text in ["copies.c:5#0", "copies.c:5#", "copies.c:5#x"] {
        assert!(symbols.place(text).is_err(), "{text}");
    }
}

/// A guest of nothing but the modules that a linked file stands for.
fn guest_with(symbols: &Symbols, module: &str) -> Symbols {
    let mut table = Builder::default();
    symbols.table().iter().for_each(|s| table.add(s.address, s.kind as u8, s.name.as_bytes(), 1));
    let parts = vec![(symbols.base(), symbols.end() - symbols.base())];
    let module = Module { name: module.into(), base: symbols.base(), size: parts[0].1, parts, at: 0 };
    Symbols { table: table.build(vec![module.name.clone()]), modules: vec![module], ..Symbols::none() }
}

#[test]
fn a_module_without_addresses_is_found_by_its_functions() {
    let folder = Folder::new("module");
    for way in WAYS {
        // What the linker made of the object is the truth.
        let path = folder.build("linked", way);
        let linked = Symbols::from_file(&path, None).unwrap();
        linked.debug_file(&path, None).unwrap();
        folder.run("cp", &["core-one-c.o", "net-one.ko"]);
        let guest = guest_with(&linked, "net_one");
        guest.debug_file(&folder.0.join("net-one.ko"), None).unwrap();
        for line in 1..=20 {
            let text = format!("core/one.c:{line}");
            let (ours, truth) = (guest.place(&text), linked.place(&text));
            match truth {
                Ok(truth) => assert_eq!(ours.unwrap().address, truth.address, "{way:?} {text}"),
                Err(e) => assert_eq!(ours.unwrap_err().to_string(), e.to_string()),
            }
        }
        let e = guest_with(&linked, "other")
            .debug_file(&folder.0.join("net-one.ko"), None)
            .unwrap_err()
            .to_string();
        assert!(e.contains("no module net_one"), "{e}");
    }
    // With one more instruction in the first function the second is elsewhere.
    let path = folder.build("linked", &["-gdwarf-5"]);
    let linked = Symbols::from_file(&path, None).unwrap();
    fs::write(folder.0.join("core/one.c"), ONE.replace("one_global--", "one_global -= n * kept * 12345"))
        .unwrap();
    folder.run("gcc", &["-c", "-O1", "-g", "-o", "net-one.ko", "core/one.c"]);
    let e = guest_with(&linked, "net_one")
        .debug_file(&folder.0.join("net-one.ko"), None)
        .unwrap_err()
        .to_string();
    assert!(e.contains("another build of the module net_one"), "{e}");
}

#[test]
fn what_is_a_line() {
    let symbols = Symbols::none();
    let e = |text: &str| symbols.place(text).unwrap_err().to_string();
    for text in ["a.c:12", "f@a.c:12", "/x/a.c:1", "a:1"] {
        assert!(e(text).contains("needs the debug file"), "{text}");
    }
    for text in [":12", "a.c:", "a.c:0", "a.c:+1", "a.c:x", "a.c"] {
        assert!(e(text).contains("no symbol") || e(text).contains("no number"), "{text}: {}", e(text));
    }
    assert_eq!(
        symbols.place("0x10").unwrap(),
        Place { address: 16, begins: false, line: None, further: Vec::new() }
    );
}

#[test]
fn a_damaged_file_is_an_error() {
    let folder = Folder::new("damaged");
    folder.build("linked", &["-gdwarf-5", "-gz=zlib"]);
    for file in ["linked", "core-one-c.o"] {
        let whole = fs::read(folder.0.join(file)).unwrap();
        let read = |bytes: &[u8]| {
            let source: &dyn Source = &bytes;
            Lines::read(&Elf::read(source).ok()?).ok()?.map(|l| {
                let mut search = Search::new("one.c", 7);
                let _ = l.search(&mut search, &|a| Some(a));
                (l.like(&search).map(|l| l.len()), search.found())
            })
        };
        assert!(matches!(read(&whole), Some((_, Found::Rows { .. }))));
        for cut in (0..whole.len()).step_by(whole.len() / 200) {
            assert!(read(&whole[..cut]).is_none());
            let mut flipped = whole.clone();
            flipped[cut] ^= 0xff;
            let _ = read(&flipped);
        }
    }
}
