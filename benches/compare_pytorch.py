#!/usr/bin/env python3
"""Sets a step of PyTorch beside the crate's, on the same machine and shapes: of convolutions, or with
`--sparse` of the product with a constant sparse matrix.

    python3 benches/compare_pytorch.py --bench PATH_TO_STEP_EXECUTABLE
    python3 benches/compare_pytorch.py --bench step --rows k31,k5 --modes f32 --csv table.csv
    python3 benches/compare_pytorch.py --sparse --bench PATH_TO_SPARSE_STEP_EXECUTABLE
    python3 benches/compare_pytorch.py --sparse --bench sparse_step --only-n 1,8 --skip COO/64

The rows are those of `benches/step.rs`. A step is forward and backward with the gradients of x, w and
b; the output gradient is random and the same at each step (in the spike rows from `mean`, too). PyTorch
runs first, all rows in one process, as a program would; then the crate does, in its own. The rows that
spike are run in a fresh process each, on both sides, since what PyTorch takes there depends on what ran
before. Both sides time the same way: a clock on the host around as many steps as take 10 ms and a
synchronisation, the median of ten. Both peaks are the framework's own, over all steps since the first,
with the tensors that were there before the step. What the libraries' handles take of the GPU when they
start is in neither: PyTorch does not see it, and the crate's meter, which does, is read less what it
shows without tensors (printed under each table). Needs PyTorch and nothing else.

With `--sparse` a step is `torch.sparse.mm(A, x.T)` and its backward pass from a random gradient, A in
COO and in CSR with 32-bit indices, x needing the gradient and A not; each in a fresh process. Then the
crate runs `sparse_step --table --streaming`. The speed of a copy from pinned memory, which bounds the
streamed product, is PyTorch's.
"""
import argparse, csv, json, math, os, statistics, subprocess, sys, tempfile, threading, time

GIB = float(1 << 30)
# Rates measured on one H200: FLOP/s by mode, and bytes/s of a copy, read and written.
RATES = {"tf32": 400e12, "f32": 50.8e12, "bf16": 783e12, "f16": 783e12}
BYTES_PER_SECOND = 4.24e12


# ---- PyTorch, in a process of its own: jobs come in as lines of JSON, results go out as such.


def worker(name, timings, timing_ms):
    import torch

    torch.backends.cudnn.benchmark = False
    device = torch.device(name)
    about = {"kind": "about", "torch": torch.__version__}
    if device.type == "cuda":
        about |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                  "gpu": torch.cuda.get_device_name(device)}
    else:
        about |= {"threads": torch.get_num_threads()}
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        result = {key: job[key] for key in ("row", "mode", "gradient", "way")}
        try:
            result |= measure(torch, device, job, timings, timing_ms)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        # Nothing of this row is to be left for the next one's peak, memory that is cached included.
        if device.type == "cuda":
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

    on_gpu = device.type == "cuda"

    def steps(count):
        start = time.perf_counter()
        for _ in range(count):
            step()
        if on_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    def timed():
        steps(1)
        count = max(1, min(200, math.ceil(timing_ms / steps(1))))
        steps(count)
        times = [steps(count) / count for _ in range(timings)]
        return {"ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times)}

    if not on_gpu:
        # There is no counter of a CPU's peak.
        return {"ms_first": steps(1)} | timed()
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
    times = timed()
    clear()
    # Without the first step's halves, since `y` lived longer there than it has to.
    peak = torch.cuda.max_memory_allocated()
    return times | {"ms_first": first, "peak": max(peak, peak_forward), "base": base,
                    "peak_forward": peak_forward, "peak_backward": peak_backward}


def pytorch(jobs, arguments):
    """The results of the jobs, by one process; those that it did not come to say so."""
    command = [arguments.python, os.path.abspath(__file__), "--worker", "--device", arguments.device,
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


# ---- Sparse products of PyTorch: a process for each job, that has PyTorch imported and nothing of CUDA.


def sparse_worker(timings, timing_ms):
    import torch

    for line in sys.stdin:
        job = json.loads(line)
        # Importing is most of a start: each child has it done, and no context of the driver's yet.
        child = os.fork()
        if child == 0:
            try:
                result = job | SPARSE_JOBS[job["kind"]](torch, job, timings, timing_ms)
            except BaseException as error:
                result = job | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            print(json.dumps(result), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            print(json.dumps(job | {"error": f"the process ended with status {status}"}), flush=True)


def about_sparse(torch, job, timings, timing_ms):
    return {"torch": torch.__version__, "cuda": torch.version.cuda,
            "gpu": torch.cuda.get_device_name(0)}


def sparse_matrix(torch, layout, size, per_row):
    device = torch.device("cuda:0")
    torch.manual_seed(1)
    columns = torch.empty((size, per_row), dtype=torch.int32, device=device)
    ranks = torch.arange(per_row, dtype=torch.int32, device=device)
    for start in range(0, size, 1 << 14):
        part = columns[start:start + (1 << 14)]
        # Numbers that may meet become distinct ones once each has its rank added.
        drawn = torch.randint(0, size - per_row + 1, part.shape, dtype=torch.int32, device=device)
        part.copy_(drawn.sort(dim=1).values + ranks)
    columns = columns.view(-1)
    values = torch.rand(size * per_row, device=device) - 0.5
    if layout == "CSR":
        dtype = torch.int32 if size * per_row < 2**31 else torch.int64
        offsets = torch.arange(size + 1, dtype=dtype, device=device) * per_row
        return torch.sparse_csr_tensor(offsets, columns.to(dtype), values, (size, size))
    rows = torch.arange(size, device=device).repeat_interleave(per_row)
    indices = torch.stack((rows, columns.long()))
    return torch.sparse_coo_tensor(indices, values, (size, size), is_coalesced=True)


def measure_sparse(torch, job, timings, timing_ms):
    size, n = job["rows"], job["n"]
    a = sparse_matrix(torch, job["layout"], size, job["nnz_per_row"])
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    x = torch.randn((n, size), device="cuda:0", requires_grad=True)
    dy = torch.randn((size, n), device="cuda:0")

    def forward():
        return torch.sparse.mm(a, x.t())

    def step():
        x.grad = None
        forward().backward(dy)

    def time_of(what):
        def runs(count):
            start = time.perf_counter()
            for _ in range(count):
                what()
            torch.cuda.synchronize()
            return (time.perf_counter() - start) * 1e3

        runs(1)
        once = runs(1)
        count = max(1, min(200, math.ceil(timing_ms / once)))
        # A second at most, since some of these steps take half of one.
        groups = max(3, min(timings, int(1e3 / (once * count))))
        return statistics.median(runs(count) / count for _ in range(groups))

    def peak_of(what):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        what()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    torch.cuda.synchronize()
    resident = torch.cuda.memory_allocated()
    peak_forward = peak_of(forward)
    peak = peak_of(step)
    x.grad = None
    return {"resident": resident, "peak_forward": peak_forward, "peak": peak,
            "ms_forward": time_of(forward), "ms": time_of(step)}


def measure_copy(torch, job, timings, timing_ms):
    """Bytes a second of a copy from pinned host memory."""
    source = torch.empty(job["bytes"], dtype=torch.uint8, pin_memory=True).fill_(1)
    target = torch.empty(job["bytes"], dtype=torch.uint8, device="cuda:0")
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return {"bytes_per_second": job["bytes"] / statistics.median(times[1:])}


SPARSE_JOBS = {"about": about_sparse, "sparse": measure_sparse, "copy": measure_copy}


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


def compare_sparse(arguments):
    """PyTorch's sparse products and the crate's, in one table."""
    skipped = {tuple(part.upper().split("/")) for part in arguments.skip.split(",") if part}
    widths = [int(n) for n in arguments.only_n.split(",")]
    cases = [(layout, n) for n in widths for layout in ("COO", "CSR")
             if not skipped & {(layout,), (layout, str(n))}]
    jobs = [{"kind": "about"}, {"kind": "copy", "bytes": 1 << 30}]
    jobs += [{"kind": "sparse", "layout": layout, "n": n, "rows": arguments.sparse_rows,
              "nnz_per_row": arguments.nnz_per_row} for layout, n in cases]
    torch, about, copy = {}, {"error": "not run"}, None
    if not arguments.no_pytorch:
        command = [arguments.python, os.path.abspath(__file__), "--worker", "--sparse",
                   "--timings", str(arguments.timings), "--timing-ms", str(arguments.timing_ms)]
        fed = "".join(json.dumps(job) + "\n" for job in jobs)
        for value, failed in lines_of(command, arguments.limit, fed):
            if value is None:
                for case in cases:
                    torch.setdefault(case, {"error": failed})
            elif value["kind"] == "about":
                about = value
            elif value["kind"] == "copy":
                copy = value
            else:
                torch[value["layout"], value["n"]] = value
                progress_sparse("PyTorch " + value["layout"], value)
    more = ["--table", "--streaming", "--rows", str(arguments.sparse_rows),
            "--nnz-per-row", str(arguments.nnz_per_row), "--widths", ",".join(map(str, widths))]
    lines = ours(arguments, more, arguments.limit)
    steps = [line for line in lines if line["kind"] == "step"]
    for out in [sys.stdout] + ([open(arguments.out, "w")] if arguments.out else []):
        print_sparse(arguments, widths, about, copy, torch, steps, lines, out)
    return 1 if any("error" in line for line in lines) else 0


def print_sparse(arguments, widths, about, copy, torch, steps, lines, out):
    if "torch" in about:
        print(f"PyTorch {about['torch']}, CUDA {about['cuda']}, {about['gpu']}", file=out)
    size, per_row = arguments.sparse_rows, arguments.nnz_per_row
    print(f"\n## Constant sparse × dense, {size}², {per_row} a row, f32\n\nA and the dense operands are in "
          "`resident`. `×`: PyTorch's figure over the crate's. GiB and ms.\n", file=out)
    print("| n | | resident | peak, forward | peak, both | forward ms | both ms | × COO: resident | peak | "
          "forward ms | both ms | × CSR: resident | peak | forward ms | both ms |", file=out)
    print("|" + "---|" * 15, file=out)
    fields = ["resident", "peak_forward", "peak", "ms_forward", "ms"]
    compared = ["resident", "peak", "ms_forward", "ms"]
    errors = []
    for n in widths:
        rows = [(f"PyTorch {layout}", torch[layout, n]) for layout in ("COO", "CSR") if (layout, n) in torch]
        for line in steps:
            if line.get("n", n) == n:
                name = line["form"] + " + transposed copy" * line.get("transpose", False)
                # What PyTorch calls resident has x and the gradient in it.
                rows.append((name + " (auto)" * line.get("auto", False),
                             line | {"resident": line.get("live"), "own": True}))
        for name, row in rows:
            if "error" in row:
                errors.append(f"n = {n}, {name}: {row['error']}")
            cells = [str(n), name]
            cells += [number(row.get(field) and row[field] / (1 if field.startswith("ms") else GIB))
                      for field in fields]
            for layout in ("COO", "CSR"):
                theirs = torch.get((layout, n), {}) if "own" in row else {}
                cells += [number(ratio(theirs.get(field), row.get(field)), 2) for field in compared]
            print("| " + " | ".join(cells) + " |", file=out)
    print(file=out)
    for line in steps:
        for taken in line.get("taken", []):
            copy_too = " + transposed copy" * line["transpose"]
            print(f"- {line['form']}{copy_too}, n = {line['n']}: {taken}", file=out)
    pinned = (copy or {}).get("bytes_per_second")
    if pinned:
        print(f"\nfrom pinned memory: {pinned / 1e9:.1f} GB/s ({copy['bytes'] / GIB:g} GiB, PyTorch's copy)",
              file=out)
    elif copy:
        errors.append(f"copy from pinned memory: {copy['error']}")
    for line in lines:
        if line["kind"] == "streaming" and "error" not in line:
            speeds = ", ".join(
                f"{way} {line['ms_' + way]:.1f} ms, {line['gb_per_second_' + way]:.1f} GB/s"
                + (f" ({line['gb_per_second_' + way] * 1e9 / pinned:.0%} of the copy)" if pinned else "")
                for way in ("forward", "backward"))
            print(f"\nlimit {line['limit'] / GIB:g} GiB, n = 1, {line['form']}, "
                  f"matrix {line['bytes'] / GIB:.3f} GiB: {speeds}; peak {line['peak'] / GIB:.3f} GiB, "
                  f"{'within' if line['within_limit'] else 'OVER'} the limit", file=out)
        elif line["kind"] in ("streaming", "end") and "error" in line:
            errors.append(f"{line['kind']}: {line['error']}")
    for error in errors:
        print(f"- {error}", file=out)


def progress_sparse(who, value):
    what = value.get("error") or (f"forward {value['ms_forward']:.3f} ms, both {value['ms']:.3f} ms, "
                                  f"{value['peak'] / GIB:.3f} GiB")
    print(f"{who}, n = {value.get('n')}: {what}", file=sys.stderr, flush=True)


def key_of(value):
    return value["row"], value["mode"], value["gradient"], value.get("way", "conv1d")


def progress(who, value):
    if value.get("kind") == "step" and "form" in value:
        progress_sparse(f"{who} {value['form']}", value)
    if "row" in value and value.get("kind") != "row":
        peak = f", {value['peak'] / GIB:.3f} GiB" if "peak" in value else ""
        what = value.get("error") or f"{value['ms']:.3f} ms{peak}"
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
            peaks = [t["peak"] / (o["peak"] - o["base"]) for t, o in pairs if "peak" in t]
            cells.append(number(geometric_mean(peaks) if peaks else None, 3))
        print(f"| {name} | " + " | ".join(cells) + " |", file=out)
    for cap in caps:
        own = [(floor_ms(entry["row"]), entry["torch"], entry["ours"][cap]["ms"]) for entry in plain
               if "ms" in entry["ours"].get(cap, {})]
        slower = sum(torch.get("ms", ms) < ms for _, torch, ms in own)
        print(f"\ncap {cap_name(cap)}: {number(geometric_mean(ms / floor for floor, _, ms in own), 2)} times the "
              f"floor; {slower} of {len(own)} rows slower than PyTorch's", file=out)
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
    parser.add_argument("--sparse", action="store_true",
                        help="sparse products instead; --bench is then the executable `sparse_step`")
    parser.add_argument("--only-n", default="1,8,64", help="with --sparse: numbers of dense vectors")
    parser.add_argument("--skip", default="",
                        help="with --sparse: what PyTorch leaves out, such as COO or COO/64,CSR/64")
    parser.add_argument("--sparse-rows", type=int, default=268800, help="with --sparse: rows and columns")
    parser.add_argument("--nnz-per-row", type=int, default=1100, help="with --sparse: entries of a row")
    parser.add_argument("--rows", default="all", help="all, small, or parts of rows' names")
    parser.add_argument("--drawn", nargs=2, metavar=("COUNT", "SEED"), help="rows drawn at random instead")
    parser.add_argument("--modes", default="tf32,f32,bf16,f16")
    parser.add_argument("--caps", default="0,64MiB,512MiB", help="none is a cap, too")
    parser.add_argument("--device", default="cuda:0", help="both sides', cuda:N or cpu; taskset "
                        "says which cores")
    parser.add_argument("--gflop", type=float, help="rows with fewer samples, so that a step has at most so "
                        "many billion operations")
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
    if arguments.worker and arguments.sparse:
        return sparse_worker(arguments.timings, arguments.timing_ms)
    if arguments.worker:
        return worker(arguments.device, arguments.timings, arguments.timing_ms)
    if not arguments.bench:
        parser.error("--bench is needed")
    arguments.bench = os.path.abspath(arguments.bench)
    if not os.access(arguments.bench, os.X_OK):
        parser.error(f"--bench: {arguments.bench} is no executable; .ci/gpu-bundle builds it")
    if arguments.sparse:
        return compare_sparse(arguments)
    caps = parse_caps(arguments.caps)
    common = ["--caps", ",".join(map(cap_argument, caps))] + ["--measured"] * arguments.measured
    none = {"error": "not run"}
    entries, about = [], None
    # Rows are the executable's own, so that there is one list of them.
    choice = ["--rows", arguments.rows, "--modes", arguments.modes]
    choice += ["--gflop", str(arguments.gflop)] if arguments.gflop else []
    choice += ["--drawn", *arguments.drawn] if arguments.drawn else []
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
            print("PyTorch " + ", ".join(f"{name} {value}" for name, value in about.items() if name != "kind"),
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
