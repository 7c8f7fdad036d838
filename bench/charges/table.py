"""What bench/profile measured, as tables."""

import statistics


def show(head, lines):
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for x in lines:
        print("| " + " | ".join(x) + " |")
    print()


def middle(values, form):
    values = [v for v in values if v is not None]
    return f"{statistics.median(values):{form}} ({min(values):{form}} - {max(values):{form}})" if values else "-"


def tables(result):
    charges(result)
    hooks(result)
    throughput(result)


def charges(result):
    alone_own = statistics.median(r["burner_own_ns"] for r in result["alone"])
    print(f"The burner alone: {middle([r['burner_own_ns'] / 1e9 for r in result['alone']], '.4f')} s, by schedstat {middle([r['burner_schedstat_ns'] / 1e9 for r in result['alone']], '.4f')} s\n")
    lines = []
    for load in dict.fromkeys(r["load"] for r in result["charges"]):
        of = [r for r in result["charges"] if r["load"] == load]
        each = lambda beside: [r["charged_ns"] / r["units"] for r in of if r["beside"] is beside]
        beside = [r for r in of if r["beside"]]

        def difference(key):
            pairs = [(r, a) for r in beside for a in of if not a["beside"] and a["round"] == r["round"] and a[key]]
            return middle([(r[key] / r["units"] * a["units"] / a[key] - 1) * 100 for r, a in pairs], "+.1f")

        lines.append([
            load, f"ns a {of[0]['unit']}", middle(each(False), ",.0f"), middle(each(True), ",.0f"), difference("charged_ns"), difference("served_ns"),
            middle([(r["burner_own_ns"] / alone_own - 1) * 100 for r in beside], "+.1f"),
            middle([(r["burner_ran_ns"] / r["burner_schedstat_ns"] - 1) * 100 for r in beside], "+.2f"),
            middle([r["burner_taken_ns"] * 100 / r["burner_own_ns"] for r in beside], ".1f"),
            middle([(r["perf_burner_ns"] / r["burner_own_ns"] - 1) * 100 for r in beside if r.get("perf_burner_ns")], "+.1f"),
            middle([r["difference_ns"] * 100 / r["passed_ns"] for r in of], ".4f"), middle([r["load_average"] for r in of], ".1f"),
        ])  # fmt: skip
    show(["load", "", "charged alone", "beside a burner", "difference, %", "of what was done for it, %", "burner's own against alone, %", "burner ran, against schedstat, %", "taken from the burner, % of its own",
          "perf says of the burner, against its own, %", "sums against passed, %", "load average"], lines)  # fmt: skip


def hooks(result):
    lines = []
    for load, h in result.get("hooks", {}).items():
        total = sum(x["ns"] for x in h["hooks"])
        costly = ", ".join(f"{x['name'].removeprefix('work_')} {x['ns'] / x['runs']:.0f} ns x {x['runs'] / h['units']:.2f}" for x in h["hooks"][:6])
        lines.append([load, f"{total / h['units']:,.0f} a {h['unit']}", costly, str(sum(x["missed"] for x in h["hooks"]))])
    if lines:
        print("Hooks by the kernel's statistics, which add about 55 ns to each run; names as far as the kernel keeps them (15 characters)\n")
        show(["load", "ns", "costliest: ns a run x runs a unit", "runs skipped"], lines)


def throughput(result):
    rows = result["throughput"]
    variants = list(dict.fromkeys(r["variant"] for r in rows))
    lines = []
    for what in dict.fromkeys(r["what"] for r in rows):
        of = {v: [r for r in rows if r["what"] == what and r["variant"] == v] for v in variants}
        line = [what]
        for v in variants:
            text = middle([r["rate"] for r in of[v]], ",.0f")
            if v != variants[0]:
                same = [r["rate"] / b["rate"] for r in of[v] for b in of[variants[0]] if b["round"] == r["round"]]
                text += f"; ratio {middle(same, '.2f')}"
            if any("lost" in r for r in of[v]):
                text += f"; lost {statistics.median(r['lost'] for r in of[v]) * 100:.1f} %"
            line.append(text)
        lines.append(line)
    if lines:
        show(["", *variants], lines)
