# SPDX-License-Identifier: Apache-2.0
"""Rows for people: lines of a table, docs/benchmarks.md, plots."""
import json
import os
import platform
import shutil
import subprocess
import time


def _read(path):
    try:
        with open(path) as f:
            return f.read().strip()
    except OSError:
        return ""


def _chosen(path):
    text = _read(path)
    return text[text.index("[") + 1:text.index("]")] if "[" in text else "?"


def machine(args):
    cpu = next((line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines()
                if line.startswith("model name")), platform.machine())
    memory = int(next(line for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal")).split()[1])
    folder = args.data.folder
    fs = subprocess.run(["findmnt", "-no", "FSTYPE,SOURCE", "-T", folder], capture_output=True, text=True).stdout.split()
    commit = shutil.which("git") and subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty"],
                                                    capture_output=True, text=True).stdout.strip()
    return {"date": time.strftime("%Y-%m-%d"), "cpu": cpu, "cpus": os.cpu_count(), "memory_gib": round(memory / 1048576, 1),
            "kernel": platform.release(), "disk": " on ".join(fs) or "?",
            "shmem_huge": _chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), "commit": commit or "?",
            "load": os.getloadavg()[0], "quick": args.quick, "repeats": args.repeats}


# Other limits of the same turns, each with its own ratio.
BESIDE = {"memcpy": "plain memcpy", "hot": "into one warm buffer", "fresh": "into fresh memory", "direct": "direct, memory like ours",
          "ordered": "bare sockets, batches in their order"}


def heading(f):
    return (f"{f['cpu']}, {f['cpus']} CPUs, {f['memory_gib']} GiB, Linux {f['kernel']}, data on {f['disk']}, huge pages for shared "
            f"memory: {f['shmem_huge']}\nload before: {f['load']:.1f}; medians of {f['repeats']}, least and most in brackets"
            + ("; --quick: only to see that it works" if f["quick"] else "") + "\n\n"
            f"{'metric':<30}{'leat':>9}  {'range':<17}{'limit':>9}  {'range':<17}{'ratio':>6}  {'unit':<9}rival")


def _span(pair):
    return f"[{pair[0]:.3g}, {pair[1]:.3g}]" if pair else ""


def line(r):
    text = (f"{r['metric']:<30}{r['leat']:>9.4g}  {_span(r['range']['leat']):<17}{r['limit']:>9.4g}  "
            f"{_span(r['range']['limit']):<17}{r['ratio']:>6.2f}  {r['unit']:<9}")
    more = [f"{name} {v['value']:.4g}" for name, v in r.get("rivals", {}).items()]
    for key, name in BESIDE.items():
        if key in r:
            more.append(f"[{name} {r[key]['value']:.4g}: {r[key]['ratio']:.2f}]")
    return text + ", ".join(more)


def footing(rows):
    """A sentence where the machine took more than a little from what was measured, else None."""
    repeated = sorted({r["metric"].rsplit(".", 1)[0] for r in rows if r["machine"]["repeated"]})
    hit = [r["metric"] for r in rows if r["machine"]["hit"]]
    if not repeated and not hit:
        return None
    steal, late_ms = (max(r["machine"][key] for r in rows) for key in ("steal", "late_ms"))
    return ("The machine stood still, or its CPUs were given to others: " +
            "; ".join([f"turns of {', '.join(repeated)} were repeated"] * bool(repeated) +
                      [f"{', '.join(hit)} have turns in them that were hit"] * bool(hit)) +
            f". In what counts up to {steal * 100:.1f} % of the CPU time was stolen, and a sleeper was up to {late_ms:.0f} ms late.")


BEGIN, END = "<!-- measured: begin (bench/run %s --update-docs writes this part) -->", "<!-- measured: end (%s) -->"
SECTIONS = {"read": [
    ("Same host", "shm", lambda m: m.startswith("shm.") and ".base" not in m),
    ("Same host, without huge pages", "shm-base", lambda m: m.startswith("shm.") and ".base" in m),
    ("Loopback TCP", "tcp", lambda m: m.startswith("tcp.")),
    ("Preload", "preload", lambda m: m.startswith(("preload.", "memory.")) and ".base" not in m),
    ("Preload, without huge pages", "preload-base", lambda m: m.startswith(("preload.", "memory.")) and ".base" in m),
    ("Open to first sample", None, lambda m: m.startswith("open.")),
], "net": [
    ("Eight servers into one receiver", "incast", lambda m: m.startswith("incast.") and not m.startswith("incast.sweep")),
    ("Limits fixed by hand, and the one that adapts", "sweep", lambda m: m.startswith("incast.sweep")),
    ("Four servers, nothing shaped", "servers4", lambda m: m.startswith("servers4.")),
    ("Rails", None, lambda m: m.startswith("rails.")),
], "loader": [
    ("Beside ReadBatch in C", "loader-resident", lambda m: m.startswith("loader.resident.")),
    ("Beside torch's DataLoader", "loader-dataloader", lambda m: m.startswith("loader.vs_dataloader.")),
    ("A job that starts again", None, lambda m: m == "loader.restart"),
    ("Files, beside other loaders: cold", "loader-cold", lambda m: m.startswith(("loader.files.cold", "loader.files.first"))),
    ("Files, beside other loaders: warm", "loader-warm", lambda m: m.startswith("loader.files.warm")),
    ("JPEGs to crops, beside other loaders", "loader-jpegs", lambda m: m.startswith("loader.jpegs")),
    ("JPEGs to crops, one core", "jpeg", lambda m: m.startswith("jpeg.")),
], "s3": [
    ("Ranges and small objects: throughput", None, lambda m: m in ("s3.4k.rate", "s3.128k.rate", "s3.1m.rate", "s3.8m.rate")),
    ("Ranges and small objects: the client's CPU", "s3-cpu", lambda m: m in ("s3.4k.cpu", "s3.128k.cpu", "s3.1m.cpu", "s3.8m.cpu")),
    ("TLS, first byte, lists", None, lambda m: m.startswith(("s3.tls.", "s3.first", "s3.list."))),
    ("Blocks, far away", None, lambda m: m.startswith("s3.blocks.")),
    ("From a bucket to views", None, lambda m: m.startswith(("s3.train.", "s3.scan.", "s3.stream."))),
], "store": [
    ("Objects out, beside nginx on one core", None, lambda m: m.startswith(("store.small.", "store.large."))),
    ("Objects in, beside nginx on one core", None, lambda m: m.startswith("store.put.")),
    ("Connections, restart, lists, batches", None, lambda m: m.startswith(("store.idle.", "store.restart", "store.list.", "store.batchget"))),
    ("From disks and remotes", None, lambda m: m.startswith(("store.region.", "store.readthrough."))),
]}


def _figure(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _cell(value, pair):
    return f"{_figure(value)} ({_figure(pair[0])} to {_figure(pair[1])})" if value is not None else ""


def _table(rows, predictions):
    out = ["| metric | unit | Leat | limit | ratio | predicted ratio | beside it |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        beside = [f"{name} {_figure(v['value'])}" for name, v in r.get("rivals", {}).items()]
        if r["metric"].startswith("loader.") and r["limit_name"]:
            beside.insert(0, f"limit: {r['limit_name']}")
        beside += [f"{name.removesuffix('_ms')} {value:.3g}" for name, value in r.get("parts", {}).items()]
        for key, name in BESIDE.items():
            if key in r:
                beside.insert(0, f"{name} {r[key]['value']:.3g} (ratio {r[key]['ratio']:.2f})")
        if "p50_us" in r:
            beside.append(f"a batch: p50 {r['p50_us']:.0f} µs, p99 {r['p99_us']:.0f} µs")
        if "latency" in r and r["metric"] == "loader.files.warm":
            beside += [f"a batch of {name}: p50 {v['p50_us']:,.0f} µs, p99 {v['p99_us']:,.0f} µs" for name, v in r["latency"].items() if name != "leat"]
        predicted = predictions.get(r["metric"])
        out.append(f"| `{r['metric']}` | {r['unit']} | {_cell(r['leat'], r['range']['leat'])} | "
                   f"{_cell(r['limit'], r['range']['limit'])} | **{r['ratio']:.2f}** | "
                   f"{'' if predicted is None else predicted} | {'; '.join(beside)} |")
    return out


def _plot(rows, title):
    from .svg import bars
    if rows[0]["metric"].startswith("incast.sweep"):
        return _curves(rows, title)
    unit = next((r["unit"] for r in rows if r["unit"] in ("GB/s", "MB/s", "samples/s", "img/s", "CPU-s/GB")), None)
    rows = [r for r in rows if r["unit"] == unit]
    if not rows:
        return None
    series = {"Leat": [], "limit": []}
    extra = BESIDE
    names = [name for key, name in extra.items() if any(key in r for r in rows)]
    rivals = list(dict.fromkeys(name for r in rows for name in r.get("rivals", {})))
    for name in names + rivals:
        series[name] = []
    for r in rows:
        series["Leat"].append((r["leat"], *r["range"]["leat"]))
        series["limit"].append((r["limit"], *r["range"]["limit"]))
        for key, name in extra.items():
            if name in series:
                series[name].append((r[key]["value"], *r[key]["range"]) if key in r else None)
        for name in rivals:
            v = r.get("rivals", {}).get(name)
            series[name].append((v["value"], *v["range"]) if v else None)
    labels = [r["metric"].removeprefix("loader.").split(".", 1)[-1].removesuffix(".goodput") for r in rows]
    return bars(f"{title}: {unit}, median, least and most", unit, labels, series)


def _curves(rows, title):
    from .svg import lines
    labels = ["adapting"] + list(rows[0]["rivals"])
    series = {r["metric"].removeprefix("incast.sweep.").replace(".", ", ") + " packets":
              [r["leat"]] + [v["value"] for v in r["rivals"].values()] for r in rows}
    return lines(f"{title}: MB/s by what may be in flight", "MB/s", labels, series)


def update_docs(folder, suite, rows, facts):
    """Writes the part between the marks of docs/benchmarks.md and the plots beside it. What people wrote around it stays."""
    path, plots = os.path.join(folder, "benchmarks.md"), os.path.join(folder, "benchmarks")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "predictions.json")) as f:
        predictions = json.load(f)["ratios"]
    with open(path) as f:
        text = f.read()
    begin, end = BEGIN % suite, END % suite
    if begin not in text or end not in text:
        raise SystemExit(f"{path}: the marks that enclose the measured part are gone")
    os.makedirs(plots, exist_ok=True)
    out = [begin, "", f"Measured {facts['date']} at {facts['commit']}: {facts['cpu']}, {facts['cpus']} CPUs, {facts['memory_gib']} GiB, "
           f"Linux {facts['kernel']}, data on {facts['disk']}, huge pages for shared memory: {facts['shmem_huge']}, load before: "
           f"{facts['load']:.1f}, {facts['repeats']} repetitions{', --quick: too short to be quoted' if facts['quick'] else ''}. "
           "Medians, least and most in parentheses.", ""]
    out += [footing(rows), ""] if footing(rows) else []
    for title, name, belongs in SECTIONS[suite]:
        some = [r for r in rows if belongs(r["metric"])]
        if not some:
            continue
        out += [f"### {title}", ""]
        plot = _plot(some, title) if name else None
        if plot:
            with open(os.path.join(plots, name + ".svg"), "w") as f:
                f.write(plot)
            out += [f"![{title}](benchmarks/{name}.svg)", ""]
        out += _table(some, predictions) + [""]
    out.append(end)
    with open(path, "w") as f:
        f.write(text[:text.index(begin)] + "\n".join(out) + text[text.index(end) + len(end):])
