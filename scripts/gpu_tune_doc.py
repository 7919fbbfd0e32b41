#!/usr/bin/env python3
"""Takes numbers of scripts/gpu-tune.sh into the tree; scripts/gpu-tune-keep.sh calls it.

tables FROM TO: tuned tables, beside the crossovers that a table of TO has already.
doc OUT FILE: the part of FILE between its markers, written anew from what OUT holds.
"""
import glob
import json
import os
import re
import statistics
import sys
import textwrap

BEGIN, END = "<!-- begin: scripts/gpu-tune-keep.sh -->", "<!-- end: scripts/gpu-tune-keep.sh -->"


def tables(source, target):
    for path in sorted(glob.glob(os.path.join(source, "*.json"))):
        with open(path) as f:
            table = json.load(f)
        place = os.path.join(target, os.path.basename(path))
        if os.path.exists(place) and not table.get("crossovers"):
            with open(place) as f:
                table["crossovers"] = json.load(f).get("crossovers")
            if not table["crossovers"]:
                del table["crossovers"]
        with open(place, "w") as f:
            f.write(json.dumps(table, indent=2, ensure_ascii=False) + "\n")
        print(place, len(table["choices"]), "choices")


def read(out, name):
    path = os.path.join(out, name)
    if not os.path.exists(path) or not os.path.getsize(path):
        return None
    with open(path) as f:
        return f.read()


def parse(text):
    """A file of a run that was cut off is none."""
    try:
        return json.loads(text) if text else None
    except json.JSONDecodeError:
        return None


def paragraph(text):
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False) + "\n"


def check(out):
    s = parse(read(out, "self-check.json"))
    if not s or not s.get("pairs"):
        return None
    off = sorted(100 * abs(p["result"]["ratio"] - 1) for p in s["list"])
    return paragraph(
        f"Kernels of {s['list'][0]['model']} were measured as two candidates, {s['pairs']} pairs going round all works and workloads on an "
        f"{s['device']}, driver {s['driver']}: {s['differ']} were called different at a stated error rate of {100 * s['level']:g} %; "
        f"{s['atmost']} may be. The sides of a pair were {statistics.median(off):.2f} % apart at the median and {off[-1]:.2f} % at most.")


def agree(out):
    s = parse(read(out, "agree.json"))
    if not s:
        return None
    both = [l for l in s["lines"] if l.get("old_candidate") and l.get("new_candidate")]
    if not both:
        return None
    alike = [l for l in both if l["old_candidate"] == l["new_candidate"]]
    others = [l for l in both if l not in alike]
    text = paragraph(
        f"Two tunings of {both[0]['model']} from nothing, with other seeds, chose the same candidate for {len(alike)} of {len(both)} works and "
        f"workloads, {100 * len(alike) / len(both):.0f} %" + (". The others, the second time against the first:" if others else "."))
    if others:
        text += "\n| work | workload | first us | second us | 95 % of the change | verdict |\n|---|---|---|---|---|---|\n"
        for l in others:
            text += (f"| `{l['family']}` | {l['context']}x{l['batch']} | {l['old_us']:.2f} | {l['new_us']:.2f} | "
                     f"{100 * (l['ratio_lo'] - 1):+.1f} to {100 * (l['ratio_hi'] - 1):+.1f} % | {l['verdict']} |\n")
    return text


def sweeps(out):
    rows = parse(read(out, "lab.json"))
    if not rows:
        return None
    taken, table = [], "\n| work | workload | best us | within 3 % | default | random | uniform | local |\n|---|---|---|---|---|---|---|---|\n"
    for path in sorted(glob.glob("autotune/lab/sweeps/*.json")):
        with open(path) as f:
            s = json.load(f)
        taken.append(f"{s['family']} of {s['model']}, {len(s['candidates'])} candidates and {s['cubins']} different cubins, on an "
                     f"{s['device']['name']} on {s['date']}")
        for p in s["points"]:
            workload, right = f"{p['context']}x{p['batch']}", [us for us in p["us"] if us > 0]
            at = {r["strategy"]: r for r in rows if (r["family"], r["workload"]) == (s["family"], workload) and abs(r["fraction"] - 0.10) < 1e-9}
            cells = [f"{100 * at[n]['regret_median']:.2f}, {100 * at[n]['regret_p90']:.2f}" for n in ("default", "random", "uniform", "local")]
            near = sum(us <= 1.03 * min(right) for us in right) / len(p["us"])
            table += f"| `{s['family']}` | {workload} | {min(right):.2f} | {100 * near:.1f} % | " + " | ".join(cells) + " |\n"
    made = paragraph("Every candidate was measured: " + "; ".join(taken) + ". Of each space the share within 3 % of the best, and regret after a tenth of "
                     "it in percent of the best time, at the median and the 90th percentile of 100 seeds. All strategies but `uniform` begin with the "
                     "default. `kvloom lab` prints the rest.")
    pictures = [os.path.basename(path)[:-4] for path in sorted(glob.glob("docs/benchmarks/lab/*.svg"))]
    told = "In the pictures, solid lines are the median and dashed ones the 90th percentile of 100 seeds.\n\n" if pictures else ""
    return made + table + "\n" + told + "\n".join(f"![{name}](lab/{name}.svg)" for name in pictures) + "\n"


def three(out):
    text, last = read(out, "three.txt"), read(out, "run3.txt")
    if not text or not last:
        return None
    runs = re.findall(r"run (\d) ended with (\d+); trials kept: (\d+)", text)
    if len(runs) < 3:
        return None
    made = paragraph(
        "Three models were tuned from nothing in three runs of one budget and database. " +
        " ".join(f"Run {n} " + ("was ended by SIGKILL" if code == "137" else "ended by itself" if code == "0" else f"ended with {code}") +
                 f": {kept} trials kept." for n, code, kept in runs) + (" The database is sound." if "is sound" in text else ""))
    made += "\n| model | this is what the last run says |\n|---|---|\n"
    model = ""
    for line in last.split("\n"):
        if m := re.match(r"(\S+) on (.+): (\d+) trials measured, (\d+) known, (\d+) left", line):
            model = f"{m[1]}, {int(m[3]) + int(m[4])} trials"
        elif re.match(r"(\d+ of \d+ choices|All \d+ choices)", line):
            made += f"| {model} | {line} |\n"
    return made + "\n[The page of these runs](tuning.html) has all choices with their intervals.\n"


def faults(out):
    text = read(out, "faults.txt")
    if not text:
        return None
    tests = re.findall(r"^ *--- (PASS|FAIL): (\S+) \(([\d.]+)s\)", text, re.M)
    if not tests:
        return None
    made = "Alone on the GPU:\n\n| planted kernel | outcome | seconds |\n|---|---|---|\n"
    for outcome, name, seconds in tests:
        if name.startswith("TestPlantedOnTheGPU/"):
            made += f"| {name.split('/')[1].replace('#01', ', after all of them').replace('_', ' ')} | {'as its class' if outcome == 'PASS' else 'not as its class'} | {seconds} |\n"
    if m := re.search(r"300 trials, 30 planted: map\[([^\]]*)\]", text):
        ended = dict((name, outcome) for outcome, name, _ in tests).get("TestThirtyFaultsOnTheGPU")
        made += "\n" + paragraph(f"30 of them among 300 trials of one run: {m[1].replace(' ', ', ').replace(':', ' ')}; " +
                                 ("each as its row says, and a second run found nothing left to do." if ended == "PASS" else "not all as their rows say."))
    return made


PARTS = [("Equal kernels (step `check`)", check), ("Two tunings (step `agree`)", agree), ("Search (step `sweep`)", sweeps),
         ("Three models, two runs killed (step `three`)", three), ("Faults (step `faults`)", faults)]


def doc(out, path):
    with open(path) as f:
        text = f.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{path}: one line {BEGIN} and one {END} have to be there")
    head, old = text.split(BEGIN)
    old, tail = old.split(END)
    kept = dict(re.findall(r"^## (.+)\n\n?((?:(?!^## ).*\n)*)", old, re.M))
    made, missing = "", []
    for title, part in PARTS:
        body = part(out) or kept.get(title, "").strip("\n")
        if body and body != "Not measured yet.":
            made += f"\n## {title}\n\n{body.strip(chr(10))}\n"
        else:
            missing.append(title)
            made += f"\n## {title}\n\nNot measured yet.\n"
    with open(path, "w") as f:
        f.write(head + BEGIN + made + "\n" + END + tail)
    print(f"{path}: {len(PARTS) - len(missing)} of {len(PARTS)} parts measured")


if __name__ == "__main__":
    {"tables": tables, "doc": doc}[sys.argv[1]](*sys.argv[2:4])
