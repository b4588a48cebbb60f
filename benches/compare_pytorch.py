#!/usr/bin/env python3
"""Sets a convolution step of PyTorch beside the crate's, on the same machine and shapes.

    python3 benches/compare_pytorch.py --bench PATH_TO_STEP_EXECUTABLE
    python3 benches/compare_pytorch.py --bench step --rows k31,k5 --modes f32 --csv table.csv

The rows are those of `benches/step.rs`. A step is forward and backward with the gradients of x, w and
b; the output gradient is random and the same at each step (in the spike rows from `mean`, too). PyTorch
runs first, all rows in one process, as a program would; then the crate does, in its own. The rows that
spike are run in a fresh process each, on both sides, since what PyTorch takes there depends on what ran
before. Both sides time the same way: a clock on the host around as many steps as take 10 ms and a
synchronisation, the median of ten. Both peaks are the framework's own, over all steps since the first,
with the tensors that were there before the step. What the libraries' handles take of the GPU when they
start is in neither: PyTorch does not see it, and the crate's meter, which does, is read less what it
shows without tensors (printed under each table). Needs PyTorch and nothing else.
"""
import argparse, csv, json, math, os, statistics, subprocess, sys, tempfile, threading, time

GIB = float(1 << 30)
# Rates measured on one H200: FLOP/s by mode, and bytes/s of a copy, read and written.
RATES = {"tf32": 400e12, "f32": 50.8e12, "bf16": 783e12, "f16": 783e12}
BYTES_PER_SECOND = 4.24e12


# ---- PyTorch, in a process of its own: jobs come in as lines of JSON, results go out as such.


def worker(timings, timing_ms):
    import torch

    torch.backends.cudnn.benchmark = False
    device = torch.device("cuda:0")
    print(json.dumps({"kind": "about", "torch": torch.__version__, "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version(),
                      "gpu": torch.cuda.get_device_name(device)}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        result = {key: job[key] for key in ("row", "mode", "gradient", "way")}
        try:
            result |= measure(torch, device, job, timings, timing_ms)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        # Nothing of this row is to be left for the next one's peak, memory that is cached included.
        torch.cuda.empty_cache()
        print(json.dumps(result), flush=True)


def measure(torch, device, job, timings, timing_ms):
    from torch.nn import functional

    tf32 = job["mode"] == "tf32"
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    dtype = {"tf32": torch.float32, "f32": torch.float32, "bf16": torch.bfloat16,
             "f16": torch.float16}[job["mode"]]
    sizes = job["sizes"]
    left, right = job["padding"]
    if left != right:
        raise ValueError("PyTorch has no uneven padding")
    torch.manual_seed(1)
    new = lambda shape, wanted: torch.randn(shape, device=device, dtype=dtype, requires_grad=wanted)
    x, w, b = new(job["x"], True), new(job["w"], True), new(job["b"], True)
    dy = new(job["y"], False) if job["gradient"] == "random" else None

    def forward():
        if job["way"] == "matmul":
            return functional.linear(x.transpose(1, 2), w.squeeze(2), b).transpose(1, 2)
        return functional.conv1d(x, w, b, stride=sizes["stride"], padding=left,
                                 dilation=sizes["dilation"], groups=sizes["groups"])

    def clear():
        x.grad = w.grad = b.grad = None

    def step():
        clear()
        if dy is None:
            forward().mean().backward()
        else:
            # The output has no name here, so that it lives no longer than PyTorch itself needs it.
            forward().backward(dy)

    def steps(count):
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    # The first step in its two halves: where the peak of a spike is.
    start = time.perf_counter()
    y = forward()
    torch.cuda.synchronize()
    peak_forward = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y.mean().backward() if dy is None else y.backward(dy)
    del y
    torch.cuda.synchronize()
    peak_backward = torch.cuda.max_memory_allocated()
    first = (time.perf_counter() - start) * 1e3
    torch.cuda.reset_peak_memory_stats()
    steps(1)
    count = max(1, min(200, math.ceil(timing_ms / steps(1))))
    steps(count)
    times = [steps(count) / count for _ in range(timings)]
    clear()
    # Without the first step's halves, since `y` lived longer there than it has to.
    peak = torch.cuda.max_memory_allocated()
    return {"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times),
            "ms_first": first, "peak": max(peak, peak_forward), "base": base,
            "peak_forward": peak_forward, "peak_backward": peak_backward}


def pytorch(jobs, arguments):
    """The results of the jobs, by one process; those that it did not come to say so."""
    command = [arguments.python, os.path.abspath(__file__), "--worker",
               "--timings", str(arguments.timings), "--timing-ms", str(arguments.timing_ms)]
    results = {}
    about = None
    for value, failed in lines_of(command, arguments.limit, "".join(json.dumps(job) + "\n" for job in jobs)):
        if value is None:
            for job in jobs:
                results.setdefault(key_of(job), {"error": failed})
        elif value.get("kind") == "about":
            about = value
        else:
            results[key_of(value)] = value
            progress("PyTorch", value)
    return results, about


# ---- The crate.


def ours(arguments, more, limit):
    """The lines that the bench executable prints."""
    command = [arguments.bench, "--timings", str(arguments.timings),
               "--timing-ms", str(arguments.timing_ms), "--device", arguments.device, *more]
    results = []
    for value, failed in lines_of(command, limit, ""):
        if value is None:
            results.append({"kind": "end", "error": failed})
        else:
            results.append(value)
            progress("capgrad", value)
    return results


def lines_of(command, limit, text):
    """(line, None) for each line of JSON that a command prints, then (None, why) if it did not end well.

    What it had printed when its time was up counts.
    """
    # Files, since a pipe that is not read at the same time can fill up and stop the command.
    with tempfile.TemporaryFile("w+") as fed, tempfile.TemporaryFile("w+") as complaints:
        fed.write(text)
        fed.seek(0)
        failed = None
        end = time.monotonic() + limit
        process = subprocess.Popen(command, stdin=fed, stdout=subprocess.PIPE, stderr=complaints,
                                   encoding="utf-8")
        # The limit has a thread of its own, so that lines can be shown as they come.
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line), None
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
        if time.monotonic() >= end:
            failed = f"over {limit:.0f} s"
        elif code != 0:
            complaints.seek(0)
            last = [line for line in complaints.read().splitlines() if line.strip()]
            failed = f"exit {code}: {last[-1] if last else 'no message'}"
        if failed:
            yield None, failed


def key_of(value):
    return value["row"], value["mode"], value["gradient"], value.get("way", "conv1d")


def progress(who, value):
    if "row" in value and value.get("kind") != "row":
        what = value.get("error") or f"{value['ms']:.3f} ms, {value['peak'] / GIB:.3f} GiB"
        cap = f", cap {cap_name(value['cap'])}" if "cap" in value else ""
        way = ", as matmul" if value.get("way") == "matmul" else ""
        print(f"{who}: {value['row']}, {value['mode']}, {value['gradient']}{way}{cap}: {what}",
              file=sys.stderr, flush=True)


# ---- Side by side.


def cap_name(cap):
    if cap is None:
        return "none"
    return f"{cap >> 20} MiB" if cap % (1 << 20) == 0 and cap else f"{cap}"


def cap_argument(cap):
    return "none" if cap is None else str(cap)


def parse_caps(text):
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
    caps = []
    for part in text.split(","):
        unit = part[-3:] if part[-3:] in units else ""
        number = part[:-3] if unit else part
        caps.append(None if part == "none" else int(float(number) * units.get(unit, 1)))
    return caps


def floor_ms(row):
    """Three passes, each the larger of its arithmetic and its traffic at the measured rates."""
    sizes, size = row["sizes"], 2 if row["mode"] in ("bf16", "f16") else 4
    x, w, y = (math.prod(row[name]) for name in "xwy")
    flops = 2 * y * sizes["in_channels"] // sizes["groups"] * sizes["kernel"]
    return 3e3 * max(flops / RATES[row["mode"]], (x + w + y) * size / BYTES_PER_SECOND)


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}" if value < 100 else f"{value:.1f}"


def table(title, entries, caps, out):
    """Prints the entries, and the geometric means of their ratios by mode."""
    head = ["row", "mode", "dy", "floor ms", "tensors", "PyTorch ms", "GiB"]
    for cap in caps:
        head += [f"cap {cap_name(cap)}: ms", "GiB", "ms ×", "GiB ×", "fits"]
    rows = []
    for entry in entries:
        row, torch = entry["row"], entry["torch"]
        as_matmul = " (as matmul)" if entry["way"] == "matmul" else ""
        cells = [row["row"] + as_matmul, row["mode"], entry["gradient"], number(floor_ms(row)),
                 number(entry["tensors"] / GIB),
                 number(torch.get("ms")) if "error" not in torch else "failed",
                 number(torch["peak"] / GIB) if "peak" in torch else "-"]
        for cap in caps:
            own = entry["ours"].get(cap)
            if own is None or "error" in own:
                cells += ["failed" if own else "-", "-", "-", "-", "-"]
                continue
            peak = own["peak"] - own["base"]
            ratios = (ratio(torch.get("ms"), own["ms"]), ratio(torch.get("peak"), peak))
            cells += [number(own["ms"]), number(peak / GIB), *(number(r, 2) for r in ratios),
                      "yes" if own["within_cap"] else f"over by {own['over_tensors'] - cap}"]
        rows.append(cells)
    print(f"\n## {title}\n", file=out)
    widths = [max(len(cells[i]) for cells in [head, *rows]) for i in range(len(head))]
    line = lambda cells: "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"
    print(line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", sep="\n", file=out)
    for cells in rows:
        print(line(cells), file=out)
    errors = [(entry, cap, own["error"]) for entry in entries for cap, own in entry["ours"].items()
              if "error" in own]
    for entry, cap, error in errors:
        print(f"- {entry['row']['row']}, {entry['row']['mode']}, cap {cap_name(cap)}: {error}", file=out)
    for entry in entries:
        if "error" in entry["torch"]:
            way = ", as matmul" if entry["way"] == "matmul" else ""
            print(f"- PyTorch, {entry['row']['row']}, {entry['row']['mode']}{way}: "
                  f"{entry['torch']['error']}", file=out)

    print("\nPyTorch's time and peak over the crate's, geometric means (over 1: the crate does better):\n",
          file=out)
    # The rows that PyTorch does as a product too are in a line of their own: they are the same step.
    plain = [entry for entry in entries if entry["way"] == "conv1d"]
    groups = [(mode, [entry for entry in plain if entry["row"]["mode"] == mode])
              for mode in dict.fromkeys(entry["row"]["mode"] for entry in entries)]
    groups.append(("all", plain))
    if len(plain) != len(entries):
        groups.append(("all, matmul rows too", entries))
    print("| mode | " + " | ".join(f"cap {cap_name(cap)}: ms × | GiB ×" for cap in caps) + " |", file=out)
    print("|---" * (1 + 2 * len(caps)) + "|", file=out)
    for name, group in groups:
        cells = []
        for cap in caps:
            pairs = [(entry["torch"], entry["ours"].get(cap)) for entry in group]
            pairs = [(torch, own) for torch, own in pairs
                     if own and "error" not in own and "error" not in torch]
            missing = f" ({len(pairs)} of {len(group)})" if len(pairs) != len(group) else ""
            cells.append(number(geometric_mean(t["ms"] / o["ms"] for t, o in pairs), 3) + missing)
            cells.append(number(geometric_mean(t["peak"] / (o["peak"] - o["base"]) for t, o in pairs), 3))
        print(f"| {name} | " + " | ".join(cells) + " |", file=out)
    over = [entry for entry in plain for own in entry["ours"].values() if own.get("within_cap") is False]
    print(f"\npeaks over tensors + cap: {len(over)}", file=out)
    held = [own["base"] for entry in entries for own in entry["ours"].values() if "base" in own]
    if held:
        print(f"live by the crate's meter without tensors, not in its peaks: "
              f"{max(held) / 2**20:.2f} MiB at most", file=out)


def ratio(theirs, own):
    return None if theirs is None or not own else theirs / own


def write_csv(path, entries):
    fields = ["table", "row", "mode", "gradient", "way", "cap", "floor_ms", "tensors", "pytorch_ms",
              "pytorch_peak", "pytorch_base", "pytorch_peak_forward", "pytorch_peak_backward",
              "pytorch_error", "ms", "ms_min", "ms_max", "ms_first", "peak", "base", "over_tensors",
              "workspace", "within_cap", "driver_peak", "driver_base", "error", "taken"]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        writer.writeheader()
        for entry in entries:
            shared = {"table": entry["table"], "row": entry["row"]["row"], "mode": entry["row"]["mode"],
                      "gradient": entry["gradient"], "way": entry["way"],
                      "floor_ms": floor_ms(entry["row"])}
            shared |= {f"pytorch_{name}": value for name, value in entry["torch"].items()}
            for cap, own in entry["ours"].items() or [(None, {})]:
                taken = " · ".join(own.get("taken", []))
                writer.writerow({**own, **shared, "tensors": entry["tensors"], "cap": cap_name(cap),
                                 "taken": taken})


def jobs_of(rows, gradient, ways=("conv1d", "matmul")):
    """What PyTorch is to run for these rows; a pointwise layer also as the product that it is."""
    for row in rows:
        for way in ways:
            if way == "conv1d" or row["sizes"]["kernel"] == 1 and row["sizes"]["groups"] == 1 \
                    and row["sizes"]["stride"] == 1:
                yield {**row, "gradient": gradient, "way": way}


def entry_of(table_name, row, index, way, torch, lines, caps):
    gradient = row["gradients"][index]
    own = {line["cap"]: line for line in lines if line.get("kind") == "step"
           and (line["row"], line["mode"], line["gradient"]) == (row["row"], row["mode"], gradient)}
    ended = next((line["error"] for line in lines if line.get("kind") == "end"), None)
    # A line that never came has the reason of the end.
    if ended:
        for cap in caps:
            own.setdefault(cap, {"error": ended})
    return {"table": table_name, "row": row, "gradient": gradient, "way": way, "torch": torch,
            "ours": own, "tensors": row["tensors"][index]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="the bench executable `step`")
    parser.add_argument("--rows", default="all", help="all, small, or parts of rows' names")
    parser.add_argument("--modes", default="tf32,f32,bf16,f16")
    parser.add_argument("--caps", default="0,64MiB,512MiB", help="none is a cap, too")
    parser.add_argument("--device", default="cuda:0", help="the crate's")
    parser.add_argument("--measured", action="store_true", help="the crate ranks by measured times")
    parser.add_argument("--no-scored", action="store_true", help="leave the scored rows out")
    parser.add_argument("--no-spike", action="store_true", help="leave the spike rows out")
    parser.add_argument("--no-pytorch", action="store_true", help="the crate's side only")
    parser.add_argument("--limit", type=float, default=400, help="seconds for all rows of one side")
    parser.add_argument("--spike-limit", type=float, default=60, help="seconds for one spike row")
    parser.add_argument("--timings", type=int, default=10)
    parser.add_argument("--timing-ms", type=float, default=10)
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--csv", help="writes every figure to this file")
    parser.add_argument("--out", help="writes the tables to this file, too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments.timings, arguments.timing_ms)
    if not arguments.bench:
        parser.error("--bench is needed")
    arguments.bench = os.path.abspath(arguments.bench)
    if not os.access(arguments.bench, os.X_OK):
        parser.error(f"--bench: {arguments.bench} is no executable; .ci/gpu-bundle builds it")
    caps = parse_caps(arguments.caps)
    common = ["--caps", ",".join(map(cap_argument, caps))] + ["--measured"] * arguments.measured
    none = {"error": "not run"}
    entries, about = [], None
    # Rows are the executable's own, so that there is one list of them.
    choice = ["--rows", arguments.rows, "--modes", arguments.modes]
    listed = [row for row in ours(arguments, ["--list", *choice], 60) if row.get("kind") == "row"]
    if not arguments.no_scored:
        if not listed:
            sys.exit(f"{arguments.bench} knows no such rows")
        results = {}
        if not arguments.no_pytorch:
            results, about = pytorch(list(jobs_of(listed, "random")), arguments)
        lines = ours(arguments, [*choice, *common], arguments.limit)
        for row in listed:
            for job in jobs_of([row], "random"):
                torch = results.get(key_of(job), none)
                entries.append(entry_of("scored", row, 0, job["way"], torch, lines, caps))
    if not arguments.no_spike:
        spike = [row for row in ours(arguments, ["--list", "--spike"], 60) if row.get("kind") == "row"]
        limits = argparse.Namespace(**{**vars(arguments), "limit": arguments.spike_limit})
        for row in spike:
            for index, gradient in enumerate(row["gradients"]):
                results = {}
                jobs = list(jobs_of([row], gradient, ["conv1d"]))
                if not arguments.no_pytorch:
                    results, said = pytorch(jobs, limits)
                    about = about or said
                more = ["--spike", "--rows", row["row"], "--gradients", gradient, *common]
                lines = ours(arguments, more, limits.limit)
                torch = results.get(key_of(jobs[0]), none)
                entries.append(entry_of("spike", row, index, "conv1d", torch, lines, caps))

    files = [sys.stdout] + ([open(arguments.out, "w")] if arguments.out else [])
    for out in files:
        if about:
            print(f"PyTorch {about['torch']}, CUDA {about['cuda']}, cuDNN {about['cudnn']}, {about['gpu']}",
                  file=out)
        print("`×`: PyTorch's figure over the crate's. `fits`: peak at most tensors + cap. GiB with the "
              "tensors that were there before the step.", file=out)
        for name, title in [("scored", "Scored rows, in one process each side"),
                            ("spike", "Spike rows, each in a fresh process")]:
            group = [entry for entry in entries if entry["table"] == name]
            if group:
                table(title, group, caps, out)
    if arguments.csv:
        write_csv(arguments.csv, entries)
    failed = [own for entry in entries for own in entry["ours"].values() if "error" in own]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
