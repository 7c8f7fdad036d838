// What the journeys go through: real logs made on the spot, each behind a real `kpat view`, and a real browser.
//
// A router's log with functions comes from the benchmark's maker of logs (built with the tests of the crates), with a
// capture whose name is markup; a log with drops, and a process whose name is markup, is recorded here from traffic in two
// network namespaces of our own.

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { get } from "node:http";
import { connect, createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { chromium, type Browser, type BrowserContextOptions, type Page } from "playwright-core";

export const KPAT = resolve(process.env["KPAT"] ?? "../target/release/kpat");
const SYNTH = join(dirname(KPAT), "examples/synth");
const CHROMIUM = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
/** Names that would do something if they were ever taken for markup. */
export const MARKUP = "<img src=x onerror=hit()>";
export const COMM = "<b>ping";

/** How much one side writes, and the other reads. */
export const WRITTEN = 20 * 1000 + 4_000_000;
const APPLICATIONS = `
import fcntl, socket, struct, subprocess, sys, termios, time
if sys.argv[1] == "read":
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100000)
    s.bind(("10.77.1.2", 7001))
    s.listen()
    print("ready", flush=True)
    c, _ = s.accept()
    while c.recv(20000):
        time.sleep(0.002)
    sys.exit()
reader = subprocess.Popen(["ip", "netns", "exec", sys.argv[1], "python3", __file__, "read"], stdout=subprocess.PIPE)
reader.stdout.readline()
s = socket.create_connection(("10.77.1.2", 7001))
for i in range(20):
    s.sendall(b"x" * 1000)
    time.sleep(0.01)
s.sendall(b"y" * 4000000)
# Acknowledgements that come behind our FIN pass no tracepoint.
while struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, bytes(4)))[0]:
    time.sleep(0.01)
s.close()
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect(("10.77.1.2", 9))
for i in range(3):
    try:
        u.send(b"z")
    except OSError:
        pass
    time.sleep(0.02)
reader.wait()
`;

export interface Service {
  /** With the token. */
  address: string;
  /** What it serves. */
  log: string;
  origin: string;
  end: () => void;
}

export class World {
  readonly dir = mkdtempSync(join(tmpdir(), "kpat-journeys-"));
  private readonly running: ChildProcess[] = [];
  private readonly undo: (() => void)[] = [];
  browser!: Browser;
  /** Namespaces of whoever sends, and of the device under test. */
  private namespaces: [string, string] | null = null;

  async begin(): Promise<void> {
    for (const [program, remedy] of [[KPAT, "make"], [SYNTH, "cargo build --release --examples"], [CHROMIUM, "scripts/setup test"]] as const)
      if (!existsSync(program)) throw new Error(`no ${program}; run: ${remedy}`);
    this.browser = await chromium.launch({
      executablePath: CHROMIUM,
      args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
    });
  }

  async end(): Promise<void> {
    await this.browser?.close();
    for (const child of this.running) child.kill("SIGINT");
    for (const u of this.undo.reverse()) u();
    rmSync(this.dir, { recursive: true, force: true });
  }

  /** A log of a router: so many calls, half as many frames as packets have on two wires. */
  router(name: string, calls: number, frames: number): string {
    const made = join(this.dir, `made-${name}`);
    execFileSync(SYNTH, [made, String(calls), String(frames)], { stdio: "pipe" });
    const capture = join(made, `${MARKUP}.pcapng`);
    copyFileSync(join(made, "w.pcapng"), capture);
    const log = join(this.dir, `${name}.kpat`);
    execFileSync(KPAT, ["-q", "integrate", join(made, "x.kbl"), capture, "-o", log], { stdio: "pipe" });
    return log;
  }

  /** The log of one router with the capture of another that ran longer: its later frames have no packet. */
  overrun(name: string, log: string, capture: string): string {
    const joined = join(this.dir, `${name}.kpat`);
    const made = (of: string) => join(this.dir, `made-${of}`);
    execFileSync(KPAT, ["-q", "integrate", join(made(log), "x.kbl"), join(made(capture), "w.pcapng"), "-o", joined], { stdio: "pipe" });
    return joined;
  }

  /** Two namespaces with a wire between them. */
  private hosts(): [string, string] {
    if (this.namespaces) return this.namespaces;
    const [a, b] = [`kpat-ja-${process.pid}`, `kpat-jb-${process.pid}`];
    const ip = (...args: string[]) => execFileSync("ip", args, { stdio: "pipe" });
    for (const ns of [a, b]) {
      ip("netns", "add", ns);
      this.undo.push(() => ip("netns", "del", ns));
      ip("-n", ns, "link", "set", "lo", "up");
    }
    ip("link", "add", "v0", "netns", a, "type", "veth", "peer", "name", "v1", "netns", b);
    ip("-n", a, "addr", "add", "10.77.1.1/24", "dev", "v0");
    ip("-n", b, "addr", "add", "10.77.1.2/24", "dev", "v1");
    ip("-n", a, "link", "set", "v0", "up");
    ip("-n", b, "link", "set", "v1", "up");
    this.namespaces = [a, b];
    return this.namespaces;
  }

  /** A log of this kernel: pings by a process with a strange name, and datagrams that nobody wants. */
  recorded(): string {
    const [a, b] = this.hosts();
    const strange = join(this.dir, "bin");
    mkdirSync(strange);
    symlinkSync(execFileSync("sh", ["-c", "command -v ping"], { encoding: "utf8" }).trim(), join(strange, COMM));
    const traffic = join(this.dir, "traffic");
    writeFileSync(traffic, `set -e\n'${join(strange, COMM)}' -n -c 5 -i 0.05 -W 5 10.77.1.2\nfor i in 1 2 3; do echo x > /dev/udp/10.77.1.2/9; done\n`);
    chmodSync(traffic, 0o755);
    const log = join(this.dir, "recorded.kbl");
    execFileSync(KPAT, ["-q", "record", "-o", log, "--netns", b, "--", "ip", "netns", "exec", a, "bash", traffic], { stdio: "pipe", timeout: 30_000 });
    const joined = join(this.dir, "recorded.kpat");
    execFileSync(KPAT, ["-q", "integrate", log, "-o", joined], { stdio: "pipe" });
    return joined;
  }

  /** A log of applications alone: small writes at known times over TCP, whose reader rests so that the window closes, and a refused datagram. With
   * `profile` "path,app" also of their packets. */
  applications(profile = "app"): string {
    const [a, b] = this.hosts();
    const program = join(this.dir, "applications.py");
    writeFileSync(program, APPLICATIONS);
    const log = join(this.dir, `applications-${profile}.kbl`);
    execFileSync(KPAT, ["-q", "record", "--profile", profile, "-o", log, "--netns", a, "--netns", b, "--", "ip", "netns", "exec", a, "python3", program, b], { stdio: "pipe", timeout: 60_000 });
    const joined = join(this.dir, `applications-${profile}.kpat`);
    execFileSync(KPAT, ["-q", "integrate", log, "-o", joined], { stdio: "pipe" });
    return joined;
  }

  /** One of the recordings of handovers that the program's tests keep, with captures. */
  kept(...names: string[]): string {
    const joined = join(this.dir, `${names[0]!.replace(/\W/g, "-")}.kpat`);
    execFileSync(KPAT, ["-q", "integrate", ...names.map((n) => join("../crates/kpat/tests/handover", n)), "-o", joined], { stdio: "pipe" });
    return joined;
  }

  /** Whom the CPUs worked for while somebody computed. */
  profiled(): string {
    const log = join(this.dir, "profiled.kbl");
    execFileSync(KPAT, ["-q", "record", "--profile", "profile", "-o", log, "--", "sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"], { stdio: "pipe", timeout: 60_000 });
    const joined = join(this.dir, "profiled.kpat");
    execFileSync(KPAT, ["-q", "integrate", log, "-o", joined], { stdio: "pipe" });
    return joined;
  }

  /** A recording that goes on for some seconds, with five pings a second; ready when something is in its file. */
  async recording(seconds: number): Promise<string> {
    const [a, b] = this.hosts();
    const log = join(this.dir, "live.kbl");
    const traffic = ["ip", "netns", "exec", a, "ping", "-n", "-q", "-i", "0.2", "-w", String(seconds), "10.77.1.2"];
    const child = spawn(KPAT, ["-q", "record", "-o", log, "--netns", b, "--", ...traffic], { stdio: ["ignore", "ignore", "pipe"] });
    this.running.push(child);
    let output = "";
    child.stderr.on("data", (d: Buffer) => (output += d.toString()));
    const until = Date.now() + 20_000;
    while (!existsSync(log) || !statSync(log).size) {
      if (child.exitCode !== null || Date.now() > until) throw new Error(`kpat record did not begin: ${output}`);
      await new Promise((again) => setTimeout(again, 50));
    }
    return log;
  }

  /** `kpat view`, ready to be asked. */
  async view(log: string, ...args: string[]): Promise<Service> {
    const child = spawn(KPAT, ["view", log, "--no-open", ...args], { stdio: ["ignore", "pipe", "pipe"] });
    this.running.push(child);
    let output = "";
    const address = await new Promise<string>((found, failed) => {
      const read = (data: Buffer) => {
        output += data.toString();
        const url = /http:\/\/127\.0\.0\.1:\d+\/#token=[\w-]+/.exec(output);
        if (url) found(url[0]);
      };
      child.stdout.on("data", read);
      child.stderr.on("data", read);
      child.on("exit", (code) => failed(new Error(`kpat view ended with ${code}: ${output}`)));
      child.on("error", failed);
    });
    return { address, log, origin: new URL(address).origin, end: () => child.kill("SIGINT") };
  }

  /** What the program itself says, as JSON. */
  asked(service: Service, ...words: string[]): unknown {
    return JSON.parse(execFileSync(KPAT, [...words, "--json", service.log], { encoding: "utf8", maxBuffer: 1 << 28 }));
  }

  /** What the program itself lists of a log. */
  events(service: Service, kind: string): { reason: string | null; place: string | null }[] {
    const text = execFileSync(KPAT, ["events", service.log, "--kind", kind, "--limit", "0", "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
    return (JSON.parse(text) as { events: { reason: string | null; place: string | null }[] }).events;
  }

  /** Where the time went, as the program itself says it. */
  time(service: Service): { path: { count: number }; functions: { function: string; calls: number }[] } {
    const text = execFileSync(KPAT, ["time", service.log, "--json"], { encoding: "utf8", maxBuffer: 1 << 28 });
    return (JSON.parse(text) as { groups: ReturnType<World["time"]>[] }).groups[0]!;
  }

  /** Times of day of its packets. */
  utc(service: Service): string[] {
    const text = execFileSync(KPAT, ["packets", service.log, "--utc", "--limit", "0", "--width", "0"], { encoding: "utf8", maxBuffer: 1 << 28 });
    return text.trimEnd().split("\n").slice(1).map((line) => /\d\d:\d\d:\d\d\.\d{9}/.exec(line)![0]);
  }

  /** Another port of this machine that leads to the service, as `ssh -L` makes one. */
  async tunnel(service: Service): Promise<{ origin: string; end: () => void }> {
    const to = Number(new URL(service.origin).port);
    const server = createServer((near) => {
      const far = connect(to, "127.0.0.1");
      for (const [a, b] of [[near, far], [far, near]] as const) {
        a.pipe(b);
        a.on("error", () => b.destroy());
      }
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, end: () => server.close() };
  }

  /** What is answered to somebody who calls it so. */
  status(address: string, host: string): Promise<number | undefined> {
    return new Promise((found, failed) => get(address, { headers: { host } }, (r) => (r.resume(), found(r.statusCode))).on("error", failed));
  }

  /** A page that fails the test at whatever it complains of. */
  async open(service: Service, place = "", options: BrowserContextOptions = {}): Promise<Page & { complaints: string[] }> {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    const page = (await context.newPage()) as Page & { complaints: string[] };
    page.complaints = [];
    page.setDefaultTimeout(30_000);
    page.on("pageerror", (e) => page.complaints.push(String(e)));
    page.on("console", (m) => m.type() === "error" && page.complaints.push(m.text()));
    page.on("dialog", (d) => page.complaints.push(`dialog ${d.message()}`));
    await page.goto(service.address);
    await page.getByRole("navigation", { name: "Views" }).waitFor();
    if (place) await page.evaluate((p) => (location.hash = p), place);
    return page;
  }
}
