"""The figures on overhead of the papers that kpat follows, measured again: KPAT's 9 to 11 (throughput of TCP: raw, recording off, to memory, to
memory and disk), MAGNeT's table I and its figures 6 and 7 (the same for applications beside tcpdump, with the CPU it takes, and for a stream).

Throughput natively, at shaped rates and unshaped, through the router of native/measure.py. Ratios are of the same round, with 95 % intervals by
Student's t. Cost of functions is measured where it can be, in a deterministic guest, by `bench/run peers`; here it is drawn.
"""

import html
import json
import math
import statistics
import subprocess
import time

from native import measure as native

# The sender's queue is shaped, as its card would be; a burst has room for one merged segment of 64 KiB.
RATES = {"100 Mbit/s": "100mbit", "1 Gbit/s": "1gbit", "unshaped": None}
# A film: paced by the application, far below the link's rate.
FILM = "film, 8 Mbit/s"
LOADS = (*RATES, FILM)
APPLICATIONS = ("-p", "app")
MEMORY = ("--memory", "64M")
BOTH = "both to disk"
EACH = ("kpat to disk", "applications to disk")
VARIANTS = {
    "nothing": None,
    "kpat off": ("kpat", *native.HERE, "--paused"),
    "kpat to memory": ("kpat", *native.HERE, *MEMORY),
    "kpat to disk": ("kpat", *native.HERE),
    "applications off": ("kpat", *native.HERE, *APPLICATIONS, "--paused"),
    "applications to memory": ("kpat", *native.HERE, *APPLICATIONS, *MEMORY),
    "applications to disk": ("kpat", *native.HERE, *APPLICATIONS),
    BOTH: ("kpat", *native.HERE, "-p", "path,app"),
    "tcpdump": ("tcpdump", native.ROUTER),
    "tcpdump -s 96": ("tcpdump", native.ROUTER, "-s", "96"),
}
# Of Student's t, 97.5 %, by degrees of freedom from 1 on.
T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05)
FEWEST = 10  # rounds of which an interval may be published


def interval(values):
    """Mean and half the width of its 95 % interval."""
    n = len(values)
    if n < 2:
        return (values[0] if values else math.nan), math.nan
    t = T[n - 2] if n - 2 < len(T) else 1.96
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(n)


def shape(rate):
    subprocess.run(native.inside(native.CL, "tc", "qdisc", "del", "dev", "c0", "root"), stderr=subprocess.DEVNULL)
    if rate:
        subprocess.run(native.inside(native.CL, "tc", "qdisc", "add", "dev", "c0", "root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms"), check=True)


def transfer(seconds, film):
    server = subprocess.Popen([*native.inside(native.SV), *native.ON_LAST, "iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if "listening" in line:
            break
    paced = ["-b", "8M", "-l", "16K"] if film else []
    run = [*native.inside(native.CL), *native.ON_FIRST, "iperf3", "-c", "10.9.2.2", "-t", native.whole(seconds), *paced, "-J"]
    end = json.loads(subprocess.run(run, capture_output=True, text=True).stdout)["end"]
    server.communicate()
    got, cpu = end["sum_received"], end["cpu_utilization_percent"]
    return {"mbit_s": got["bits_per_second"] / 1e6, "ends_cpu_percent": cpu["host_total"] + cpu["remote_total"], "retransmits": end["sum_sent"].get("retransmits")}


def measure(a, rounds, seconds, save, loads=None, only=None):
    """`a`: kpat and folder. Each variant in each round, in another order each time."""
    rows = []
    names = [v for v in VARIANTS if v == "nothing" or not only or v in only]
    native.down()
    try:
        native.up()
        for load in loads or LOADS:
            shape(RATES.get(load))
            transfer(1, load == FILM)
            for n in range(1, rounds + 1):
                for variant in names[n % len(names) :] + names[: n % len(names)]:
                    tool = native.Tool(VARIANTS[variant], a)
                    (b0, s0), t0 = native.busy_s(), time.monotonic()
                    r = {"load": load, "variant": variant, "round": n, **transfer(seconds, load == FILM)}
                    (b1, s1), t1 = native.busy_s(), time.monotonic()
                    r |= {"machine_busy_cpus": (b1 - b0) / (t1 - t0), "stolen_cpus": (s1 - s0) / (t1 - t0)}
                    answer = tool.end()
                    answer.pop("summary", None)
                    rows.append(r | answer)
                    save(rows)
                    print(json.dumps(rows[-1]), flush=True)
    finally:
        native.down()
    return rows


def ratios(rows, key):
    """By load and variant: of each round the value, and what it is of that with nothing in the same round."""
    raw = {(r["load"], r["round"]): r[key] for r in rows if r["variant"] == "nothing"}
    found = {}
    for r in rows:
        of = raw.get((r["load"], r["round"]))
        if of:
            values, parts = found.setdefault((r["load"], r["variant"]), ([], []))
            values.append(r[key])
            parts.append(r[key] / of)
    return found


def number(mean, half, form):
    return format(mean, form) + (f" ± {format(half, form)}" if not math.isnan(half) else "")


def caution(rows):
    rounds = len({r["round"] for r in rows})
    return f"{rounds} rounds, too few to be published: {FEWEST} at least. " if rounds < FEWEST else f"{rounds} rounds. "


def table(rows, show):
    rate, cpu = ratios(rows, "mbit_s"), ratios(rows, "ends_cpu_percent")
    print(f"TCP, {caution(rows)}Ratio to nothing in the same round, 95 % intervals.\n")
    for load in dict.fromkeys(r["load"] for r in rows):
        lines = []
        for v in dict.fromkeys(r["variant"] for r in rows):
            if (load, v) not in rate:
                continue
            group = [r for r in rows if (r["load"], r["variant"]) == (load, v)]
            lost = [100 * r["lost"] / (r["lost"] + r["events"]) for r in group if r.get("events")]
            lines.append([
                v, number(*interval(rate[load, v][0]), ",.1f"), number(*interval(rate[load, v][1]), ".3f"), number(*interval(cpu[load, v][0]), ".1f"), number(*interval(cpu[load, v][1]), ".2f"),
                number(*interval([r["machine_busy_cpus"] for r in group]), ".2f"), f"{statistics.mean(lost):.1f}" if lost else "-",
            ])  # fmt: skip
        print(f"{load}\n")
        show(["", "Mbit/s", "ratio", "CPU of both ends, %", "ratio", "busy CPUs of the machine", "lost, %"], lines)
    if both := together(rows):
        print("What is added to the CPU of both ends for each bit, of that with nothing\n")
        sides = lambda pairs: [number(*interval([p[i] for p in pairs]), ".3f") for i in (0, 1)]
        less = lambda pairs: number(*interval([p[0] - p[1] for p in pairs]), ".3f")
        show(["", "both in one recording", "sum of each alone", "difference"], [[load, *sides(pairs), less(pairs)] for load, pairs in both.items()])


def together(rows):
    """What both sources cost in one recording, of the sum of what each costs in one of its own, in CPU of both ends for what was moved: by load
    and round. Two recordings pay for what they share (the record of a task, headers) twice."""
    per = {(r["load"], r["round"], r["variant"]): r["ends_cpu_percent"] / r["mbit_s"] for r in rows if r["mbit_s"]}
    found = {}
    for load, n, variant in per:
        raw, all_of = per.get((load, n, "nothing")), [per.get((load, n, v)) for v in (BOTH, *EACH)]
        if variant == BOTH and raw and all(all_of):
            both, *each = (x - raw for x in all_of)
            found.setdefault(load, []).append((both / raw, sum(each) / raw))
    return found


STYLE = ("<style>svg{font:12px sans-serif;background:#fff}.axis{stroke:#8893a5}.grid{stroke:#e3e7ee}.error{stroke:#222}"
         ".b0{fill:#8893a5}.b1{fill:#c9d6ea}.b2{fill:#7ba3d6}.b3{fill:#2f68b1}.b4{fill:#cfe7dd}.b5{fill:#6fbf9f}.b6{fill:#168a66}.b7{fill:#c07a10}.b8{fill:#e2b566}</style>")  # fmt: skip


def bars(title, groups, unit, note=""):
    """Grouped bars: `groups` is [(name, [(bar, mean, half)])]."""
    names = list(dict.fromkeys(b for _, some in groups for b, _, _ in some))
    wide, tall, left, top = 60 + sum(len(some) * 22 + 30 for _, some in groups), 220, 60, 40
    most = max((mean + (0 if math.isnan(half) else half) for _, some in groups for _, mean, half in some), default=1) or 1
    step = 10 ** math.floor(math.log10(most))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if most / s <= 8)
    y = lambda v: top + tall - tall * v / most
    out = [f'<text x="{left}" y="18" font-weight="bold">{html.escape(title)}</text>', f'<text x="{left}" y="33" fill="#556">{html.escape(unit)}{html.escape(note)}</text>']
    for i in range(int(most / step) + 1):
        out.append(f'<line class="grid" x1="{left}" x2="{wide}" y1="{y(i * step):.1f}" y2="{y(i * step):.1f}"/><text x="{left - 6}" y="{y(i * step) + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    x = left + 15
    for name, some in groups:
        out.append(f'<text x="{x + 11 * len(some):.0f}" y="{top + tall + 16}" text-anchor="middle">{html.escape(name)}</text>')
        for bar, mean, half in some:
            words = html.escape(f"{name}, {bar}: {number(mean, half, '.3g')}")
            out.append(f'<rect class="b{names.index(bar) % 9}" x="{x}" y="{y(mean):.1f}" width="18" height="{top + tall - y(mean):.1f}"><title>{words}</title></rect>')
            if not math.isnan(half):
                out.append(f'<line class="error" x1="{x + 9}" x2="{x + 9}" y1="{y(mean + half):.1f}" y2="{y(max(mean - half, 0)):.1f}"/>')
            x += 22
        x += 30
    column = max(190, max(map(len, names), default=0) * 7 + 25)
    for i, name in enumerate(names):
        across, down = left + (i % 3) * column, top + tall + 38 + 16 * (i // 3)
        out.append(f'<rect class="b{i % 9}" x="{across}" y="{down - 10}" width="10" height="10"/><text x="{across + 15}" y="{down}">{html.escape(name)}</text>')
    wide = max(wide, left + min(3, len(names)) * column)
    height = top + tall + 46 + 16 * math.ceil(len(names) / 3)
    body = "\n".join(out)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" width="{wide}" role="img" aria-label="{html.escape(title)}">{STYLE}\n<line class="axis" x1="{left}" x2="{left}" y1="{top}" y2="{top + tall}"/>\n{body}</svg>\n'


def draw(rows, peers, folder):
    """Writes the figures; returns their names."""
    made = {}
    if rows:
        rate, cpu = ratios(rows, "mbit_s"), ratios(rows, "ends_cpu_percent")
        loads, note = list(dict.fromkeys(r["load"] for r in rows)), f"; {caution(rows)}95 % intervals"
        group = lambda of, load, keep: (load, [(v, *interval(of[load, v][1])) for v in VARIANTS if (load, v) in of and keep(v)])
        kpat = lambda v: not v.startswith("applications")
        others = lambda v: not v.startswith("kpat")
        shaped = [x for x in loads if x != FILM]
        made["throughput.svg"] = bars("Throughput of TCP while packets are recorded (KPAT, figures 9 to 11)", [group(rate, x, kpat) for x in shaped], "of that with nothing", note)
        made["applications.svg"] = bars("Throughput of TCP while applications are recorded (MAGNeT, table I)", [group(rate, x, others) for x in shaped], "of that with nothing", note)
        made["cpu.svg"] = bars("CPU of both ends (MAGNeT, figure 6)", [group(cpu, x, others) for x in shaped], "of that with nothing", note)
        if FILM in loads:
            made["film.svg"] = bars("CPU of both ends of a film (MAGNeT, figure 7)", [group(cpu, FILM, others)], "of that with nothing", note)
    for result in peers:
        some = []
        for r in result["rows"]:
            if r["variant"] != "nothing" and r.get("median_ns") and r["mode"] == "live":
                some.append((r["variant"], r["median_ns"] - r["nothing_ns"], math.nan))
        if some:
            series = ".".join(result["kernel"].split(".")[:2])
            made[f"functions-{series}.svg"] = bars(f"What tools add to a packet, Linux {result['kernel']}", [("reader on the same CPU", some)], "instructions, deterministic guest")
    for name, text in made.items():
        (folder / name).write_text(text)
    return list(made)
