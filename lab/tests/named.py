"""Names of a program's functions where no linker gave it a build id, where its notes are in sections alone, where its path is another file's or nobody's, where
its compiler writes its map when it ends, in the functions that the kernel maps into it, where it is gone after milliseconds, and what it loaded last. Truth is the program: it
says where its time goes."""
import json
import os
import pwd
import shutil
import struct
import unittest

from kpatlab import cache, look, play
from tests.place import own, sh

# Two functions, three times as much in one, and then the clock.
WORK = """
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
volatile unsigned long sum;
/* Where a loop lies in its line decides how fast it is. */
__attribute__((noinline, aligned(64))) void much(void) { for (long i = 0; i < 300000; i++) sum += i; }
__attribute__((noinline, aligned(64))) void little(void) { for (long i = 0; i < 100000; i++) sum += i; }
static long spent(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec * 1000 + t.tv_nsec / 1000000; }
int main(int argc, char **argv)
{
	struct timespec t;
	while (spent() < 1000) { much(); little(); }
	if (argc > 1 && !strcmp(argv[1], "clock"))
		while (spent() < 2000) for (int i = 0; i < 10000; i++) clock_gettime(CLOCK_MONOTONIC, &t);
	puts("did"); fflush(stdout);
	if (argc > 1 && !strcmp(argv[1], "wait")) pause();
	return 0;
}
"""
# Machine code as a compiler at run time makes it, whose map is written when all is done, as node's is.
MADE = """
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
int main(void)
{
	/* mov $100000000, %rcx; 1: dec %rcx; jnz 1b; ret */
	const unsigned char code[] = { 0x48, 0xc7, 0xc1, 0x00, 0xe1, 0xf5, 0x05, 0x48, 0xff, 0xc9, 0x75, 0xfb, 0xc3 };
	char *at = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), path[64];
	memcpy(at, code, sizeof code);
	sprintf(path, "/tmp/perf-%d.map", getpid());
	FILE *map = fopen(path, "w");
	for (int i = 0; i < 20; i++) ((void (*)(void))at)();
	fprintf(map, "%lx %zx JS:*hot /x.js:1\\n", (long)at, sizeof code);
	fclose(map);
	printf("map %s\\n", path);
	return 0;
}
"""
# 20 ms in one function: by itself, or in so many forks of it.
SHORT = """
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
volatile unsigned long sum;
__attribute__((noinline)) void hot(void) { for (long i = 0; i < 20000; i++) sum += i; }
static void burn(void) { struct timespec t; do { for (int i = 0; i < 20; i++) hot(); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); } while (t.tv_nsec < 20000000); }
int main(int argc, char **argv)
{
	int forks = argc > 1 ? atoi(argv[1]) : 0;
	if (!forks) burn();
	while (forks--) {
		if (!fork()) { burn(); _exit(0); }
		wait(0);
	}
	return 0;
}
"""
# 300 ms of its own, then 100 ms in what it loads for that, and it is gone.
LOADS = """
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>
volatile unsigned long sum;
long spent(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec * 1000 + t.tv_nsec / 1000000; }
__attribute__((noinline)) void own(void) { for (long i = 0; i < 300000; i++) sum += i; }
int main(int argc, char **argv)
{
	while (spent() < 300) own();
	void (*late)(void) = (void (*)(void))dlsym(dlopen(argv[1], RTLD_NOW), "late");
	while (spent() < 400) late();
	return 0;
}
"""
LOADED = "volatile unsigned long sum; void late(void) { for (long i = 0; i < 300000; i++) sum += i; }"
TIMES = 50


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
class Named(unittest.TestCase):
    def setUp(self):
        own(self, "named", "")

    def compiled(self, name: str, text: str, *flags: str):
        source, program = self.dir / f"{name}.c", self.dir / name
        source.write_text(text)
        sh("cc", "-O1", "-fno-omit-frame-pointer", *flags, "-o", program, source)
        return program

    def functions(self, log, program: str) -> dict[str, float]:
        """Shares of the samples of a program, however often it ran, by its innermost function of user mode."""
        pids = {p["pid"] for p in look.kpat_json("profile", str(log), "--limit", "0")["processes"] if p["name"] == program}
        found: dict[str, int] = {}
        for line in sh(play.kpat_path(), "profile", log, "--to", "json").stdout.splitlines():
            stack = json.loads(line)
            last = stack["functions"][-1] if stack["functions"] else {}
            if stack["served"] in pids and stack["for"] == "itself" and not last.get("kernel"):
                name = last["function"]
                found[name] = found.get(name, 0) + stack["samples"]
        print(f"named: {program}: {found}", flush=True)
        return {name: n / sum(found.values()) for name, n in found.items()}

    def record(self, name: str, *argv):
        kbl, out = self.dir / f"{name}.kbl", self.dir / f"{name}.kpat"
        r = sh(play.kpat_path(), "record", "-p", "profile", "--rate", 499, "--no-cost", "-o", kbl, "--", *argv)
        look.integrate(kbl, [], out)
        return out, r.stdout

    def as_it_burns(self, log, program: str) -> None:
        shares = self.functions(log, program)
        self.assertLess(abs(shares.get("much", 0) - 0.75), 0.1)
        self.assertLess(abs(shares.get("little", 0) - 0.25), 0.1)

    def test_a_program_without_a_build_id(self):
        program = self.compiled("noid", WORK, "-Wl,--build-id=none")
        self.assertNotIn("Build ID", sh("readelf", "-n", program).stdout)
        log, _ = self.record("noid", program)
        self.as_it_burns(log, "noid")
        # Another build at the same path is another program, and has no names for this one.
        kbl, again = self.dir / "noid.kbl", self.dir / "again.kpat"
        self.compiled("noid", WORK.replace("much", "more"), "-Wl,--build-id=none")
        look.integrate(kbl, [], again)
        self.assertFalse({"much", "more"} & self.functions(again, "noid").keys())

    def test_a_build_id_in_a_section_alone_as_go_has_it(self):
        program = self.compiled("section", WORK, "-Wl,--build-id")
        elf = bytearray(program.read_bytes())
        at, size, count = struct.unpack_from("<Q", elf, 32)[0], *struct.unpack_from("<HH", elf, 54)
        for header in range(at, at + size * count, size):
            if struct.unpack_from("<I", elf, header)[0] == 4:  # PT_NOTE
                struct.pack_into("<I", elf, header, 0)
        program.write_bytes(elf)
        self.assertNotIn("NOTE", sh("readelf", "-lW", program).stdout.split("Section to Segment")[0])
        self.assertIn("Build ID", sh("readelf", "-n", program).stdout)
        log, _ = self.record("section", program)
        self.as_it_burns(log, "section")

    def test_files_of_another_root_and_deleted_ones_while_a_process_has_them(self):
        for how in ("another root", "deleted"):
            program = self.compiled("away", WORK)
            to = self.dir / "root"
            to.mkdir(exist_ok=True)
            inside = f"mount -t tmpfs none {to} && cp {program} {to}/ && exec {to}/away wait"
            argv = ["unshare", "-m", "sh", "-c", inside] if how == "another root" else [str(program), "wait"]
            kbl, out, ready = (self.dir / f"{how.split()[0]}.{x}" for x in ("kbl", "kpat", "ready"))
            record = play.Process("record", [play.kpat_path(), "record", "-p", "profile", "--rate", "499", "--no-cost", "-o", str(kbl), "--ready-file", str(ready)], self.dir)
            self.stack.callback(record.stop)
            record.wait_ready(ready.exists, cache.patience())
            p = play.Process("away", argv, self.dir)
            self.stack.callback(p.stop)
            p.wait_ready(lambda: "did" in play.text_of(p.stdout), cache.patience())
            self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
            if how == "deleted":
                program.unlink()
            look.integrate(kbl, [], out)
            self.as_it_burns(out, "away")
            p.stop()

    def test_what_a_compiler_writes_when_the_program_ends(self):
        if os.uname().machine != "x86_64":
            self.skipTest("its code is for x86-64")
        log, printed = self.record("made", self.compiled("made", MADE))
        path = printed.split()[-1]
        self.stack.callback(os.unlink, path)
        self.assertGreater(self.functions(log, "made").get("JS:*hot /x.js:1", 0), 0.9)

    def test_processes_that_are_gone_after_milliseconds(self):
        program = self.compiled("short", SHORT)
        log, _ = self.record("short", "sh", "-c", f"for i in $(seq {TIMES}); do {program}; done; {program} {TIMES}")
        shares = self.functions(log, "short")
        self.assertGreater(shares.get("hot", 0), 0.8)
        self.assertLess(shares.get("[unknown]", 0), 0.02)

    def test_what_a_program_loads_last(self):
        library = self.compiled("late.so", LOADED, "-shared", "-fPIC")
        log, _ = self.record("loads", self.compiled("loads", LOADS, "-ldl"), library)
        shares = self.functions(log, "loads")
        self.assertLess(abs(shares.get("late", 0) - 0.25), 0.12)
        self.assertLess(shares.get("[unknown]", 0), 0.02)

    def test_processes_of_a_user_by_name(self):
        program = self.compiled("short", SHORT)
        self.dir.chmod(0o755)
        log, _ = self.record("user", "sh", "-c", f"{program}; setpriv --reuid nobody {program}")
        nobody = pwd.getpwnam("nobody").pw_uid
        for user in ("nobody", nobody):
            processes = look.kpat_json("profile", str(log), "--user", str(user), "--limit", "0")["processes"]
            self.assertEqual({p["uid"] for p in processes}, {nobody})
            self.assertIn("short", [p["name"] for p in processes])
        groups = look.kpat_json("profile", str(log), "--by", "user")["groups"]
        self.assertLessEqual({"root", "nobody"}, {g["user"] for g in groups})
        self.assertIn("of a user nosuch", sh(play.kpat_path(), "profile", log, "--user", "nosuch", ok=False).stderr)

    def test_the_clock_that_the_kernel_maps_into_programs(self):
        if os.uname().machine != "x86_64":
            self.skipTest("its name is x86-64's")
        log, _ = self.record("clock", self.compiled("asks", WORK), "clock")
        shares = self.functions(log, "asks")
        self.assertGreater(shares.get("__vdso_clock_gettime", 0), 0.2, "half of its time")
        self.assertLess(shares.get("", 0) + shares.get(None, 0), 0.05)
