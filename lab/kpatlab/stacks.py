"""Figures of MAGNeT's section IV.C (2001), of a run of lab/successive-stacks: sizes over time (figure 8), bandwidth over successive stacks (figure 9)."""
from html import escape

WIDE, TALL, LEFT, TOP = 900, 260, 70, 40

STYLE = """<style>
svg { font: 12px sans-serif; background: #fff; } .axis { stroke: #8893a5; } .grid { stroke: #e3e7ee; } .write { fill: #c07a10; } .packet { fill: #168a66; }
.ours { fill: #2f56d3; } .paper { fill: #b4bdca; } .title { font-weight: 600; } .right { text-anchor: end; } .middle { text-anchor: middle; }
</style>"""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def steps(most: float) -> list[float]:
    """Round marks from nothing to what holds the most."""
    power = 10.0 ** (len(str(int(max(most, 1)))) - 1)
    step = next(s for s in (power / 5, power / 2, power, power * 2) if most / s <= 6)
    return [i * step for i in range(int(most / step) + 2)]


def sizes(top: float, writes: list, packets: list) -> list[str]:
    """Each write and each packet as a point: when, and how many bytes. Both of one clock, in nanoseconds."""
    begin = min(at for at, _ in writes + packets)
    end = max(at for at, _ in writes + packets) or 1
    marks = steps(max(n for _, n in writes + packets))
    x = lambda at: LEFT + (at - begin) / max(1, end - begin) * (WIDE - LEFT - 20)
    y = lambda n: top + TALL - n / marks[-1] * (TALL - TOP)
    out = [text(LEFT, top + 16, "Sizes over time (figure 8): what the application wrote, and the packets that TCP made of it", "title")]
    for m in marks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - 20}" y1="{y(m):.1f}" y2="{y(m):.1f}"/>' + text(LEFT - 6, y(m) + 4, f"{m:.0f}", "right"))
    out.append(text(6, top + TOP - 6, "bytes"))
    for i in range(6):
        at = begin + (end - begin) * i / 5
        out.append(text(x(at), top + TALL + 16, f"{(at - begin) / 1e9:.2f} s", "middle"))
    out += [f'<circle class="packet" cx="{x(at):.1f}" cy="{y(n):.1f}" r="1.8"/>' for at, n in packets]
    out += [f'<circle class="write" cx="{x(at):.1f}" cy="{y(n):.1f}" r="3"/>' for at, n in writes]
    out += [f'<circle class="write" cx="{WIDE - 180}" cy="{top + 28}" r="3"/>', text(WIDE - 172, top + 32, "one write")]
    out += [f'<circle class="packet" cx="{WIDE - 100}" cy="{top + 28}" r="1.8"/>', text(WIDE - 92, top + 32, "one packet")]
    return out


def bandwidth(top: float, rows: list, paper: dict) -> list[str]:
    """Bytes a second of the application and of each stack; beside it what the paper's table makes of size and spacing."""
    ours = [r["bytes_s"] for r in rows]
    theirs = [paper[i][0] / paper[i][1] if i in paper else None for i in range(len(rows))]
    marks = steps(max(ours + [t for t in theirs if t]) / 1e3)
    y = lambda rate: top + TALL - rate / 1e3 / marks[-1] * (TALL - TOP)
    wide = (WIDE - LEFT - 20) / len(rows)
    out = [text(LEFT, top + 16, "Bandwidth over successive stacks (figure 9)", "title"), text(6, top + TOP - 6, "kB/s")]
    for m in marks:
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - 20}" y1="{y(m * 1e3):.1f}" y2="{y(m * 1e3):.1f}"/>' + text(LEFT - 6, y(m * 1e3) + 4, f"{m:g}", "right"))
    for i, (r, own, other) in enumerate(zip(rows, ours, theirs)):
        at = LEFT + i * wide
        for kind, rate, shift in (("ours", own, 0.15), ("paper", other, 0.5)):
            if rate:
                out.append(f'<rect class="{kind}" x="{at + shift * wide:.1f}" y="{y(rate):.1f}" width="{wide * 0.3:.1f}" height="{top + TALL - y(rate):.1f}"/>')
                out.append(text(at + (shift + 0.15) * wide, y(rate) - 4, f"{rate / 1e3:.1f}", "middle"))
        out.append(text(at + wide / 2, top + TALL + 16, r["what"], "middle"))
    for kind, words, x in (("ours", "this run", WIDE - 200), ("paper", "the paper, 2001", WIDE - 120)):
        out += [f'<rect class="{kind}" x="{x}" y="{top + 23}" width="10" height="10"/>', text(x + 14, top + 32, words)]
    return out


def figures(writes: list, packets: list, rows: list, paper: dict) -> str:
    body = sizes(10, writes, packets) + bandwidth(TALL + 70, rows, paper)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {2 * TALL + 110}" width="{WIDE}" role="img" aria-label="Successive TCP stacks">'
            + STYLE + "\n".join(body) + "</svg>\n")
