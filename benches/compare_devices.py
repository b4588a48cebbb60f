#!/usr/bin/env python3
"""The second workload with its matrix on another device, and copies between devices, beside PyTorch.

    cargo build --release --examples
    cargo bench --no-run --bench transfers     # prints the executable's path
    python3 benches/compare_devices.py --example target/release/examples/sparse_training --bench PATH

A training step of the autoencoder through the sparse matrix (Adam, f32): PyTorch's on one GPU, with the
matrix in COO form, beside this crate's with the matrix on the model's device, on a second device of the
same GPU, and on the host: milliseconds a step, each device's peak, and the loss, which must not depend on
where the matrix is. Then copies, beside those of pinned memory.
"""
import argparse, json, re, statistics, subprocess, sys, time


def autoencoder(torch, channels):
    """`Autoencoder` of examples/workloads/mod.rs."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv1d(channels, 64, 4, stride=2, padding=1), nn.GELU(),
        nn.Conv1d(64, 32, 4, stride=2, padding=1), nn.GELU(),
        nn.ConvTranspose1d(32, 64, 4, stride=2, padding=1), nn.GELU(),
        nn.ConvTranspose1d(64, 64, 4, stride=2, padding=1), nn.GELU(),
        nn.Conv1d(64, channels, 3, padding=1)).cuda()


def matrix(torch, size, per_row):
    """One entry in each of as many equal parts of the columns, as `operator` there makes it."""
    torch.manual_seed(1)
    parts = torch.arange(per_row + 1, dtype=torch.float64, device="cuda") * size / per_row
    starts = parts.long()
    columns = torch.empty((size, per_row), dtype=torch.int64, device="cuda")
    for row in range(0, size, 1 << 14):
        piece = columns[row:row + (1 << 14)]
        drawn = torch.rand(piece.shape, device="cuda")
        piece.copy_(starts[:-1] + (drawn * (starts[1:] - starts[:-1])).long().clamp(max=size))
    rows = torch.arange(size, device="cuda").repeat_interleave(per_row)
    values = (torch.rand(size * per_row, device="cuda") * 2 - 1) / per_row ** 0.5
    indices = torch.stack((rows, columns.view(-1)))
    del rows, columns
    return torch.sparse_coo_tensor(indices, values, (size, size), is_coalesced=True)


def pytorch(torch, positions, channels, per_row, batch, steps):
    size = positions * channels
    a = matrix(torch, size, per_row)
    model = autoencoder(torch, channels)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    x = torch.rand(batch, channels, positions, device="cuda")
    target = torch.sparse.mm(a, x.flatten(1).T).T
    times = []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        adam.zero_grad(set_to_none=True)
        z = torch.sparse.mm(a, model(x).flatten(1).T).T
        loss = torch.nn.functional.mse_loss(z, target)
        loss.backward()
        adam.step()
        loss.item()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[1:]), torch.cuda.max_memory_allocated()


def pinned(torch, size):
    """Bytes a second to the GPU, and from it."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True).fill_(1)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")

    def rate(to, source):
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        return size / statistics.median(times[1:])

    return rate(device, host), rate(host, device)


def ours(arguments, batch, where):
    """(ms, loss, {device: peak}) of the example."""
    command = [arguments.example, "--device", "cuda:0", "--grid", arguments.grid, "--nnz-per-row",
               str(arguments.nnz_per_row), "--batch", str(batch), "--steps", str(arguments.steps)]
    if where:
        command += ["--matrix-device", where]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        print(f"{' '.join(command)}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    text = done.stdout
    ms = float(re.search(r"takes ([\d.]+) ms", text)[1])
    loss = re.findall(r"^ *\d+ +([\d.]+) ", text, re.M)[-1]
    peaks = dict(re.findall(r"^(\S+): peak (.*?), live", text, re.M))
    line = re.search(r"^operator .*$", text, re.M)[0]
    return ms, loss, peaks, line


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--example", required=True, help="the executable `sparse_training`")
    parser.add_argument("--bench", required=True, help="the bench executable `transfers`")
    parser.add_argument("--grid", default="700x384", help="positions x channels")
    parser.add_argument("--nnz-per-row", type=int, default=1100)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--no-pytorch", action="store_true", help="the crate's side only")
    arguments = parser.parse_args()
    positions, channels = map(int, arguments.grid.split("x"))
    if not arguments.no_pytorch:
        import torch
        print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
        to_gpu, from_gpu = pinned(torch, 1 << 30)
        print(f"pinned copies of 1 GiB: {to_gpu / 1e9:.1f} GB/s to the GPU, {from_gpu / 1e9:.1f} from it",
              flush=True)
    print("copies, GB/s:")
    done = subprocess.run([arguments.bench, "--bench", "--table"], capture_output=True, encoding="utf-8")
    for line in filter(lambda line: line.startswith("{"), done.stdout.splitlines()):
        it = json.loads(line)
        pin = ""
        if not arguments.no_pytorch and it["way"] in ("cpu to cuda", "cuda to cpu", "cuda to a slice"):
            of = to_gpu if it["way"] == "cpu to cuda" else from_gpu
            pin = f"  {100 * it['bytes_per_second'] / of:5.1f} % of pinned"
        print(f"  {it['way']:<30} {it['bytes'] >> 20:>5} MiB, cap {it['cap'] >> 20:>3} MiB: "
              f"{it['bytes_per_second'] / 1e9:7.2f}{pin}", flush=True)
    if done.returncode != 0:
        print(done.stderr[-300:])
    for batch in map(int, arguments.batches.split(",")):
        for where in (None, "second", "cpu"):
            result = ours(arguments, batch, where)
            if result:
                ms, loss, peaks, line = result
                peaks = ", ".join(f"{device} {peak}" for device, peak in peaks.items())
                print(f"batch {batch}, matrix {where or 'on the model`s device':<22} {ms:9.2f} ms  loss {loss}  "
                      f"peaks {peaks}  ({line})", flush=True)
        if not arguments.no_pytorch:
            ms, peak = pytorch(torch, positions, channels, arguments.nnz_per_row, batch,
                               min(arguments.steps, 8))
            print(f"batch {batch}, PyTorch, one GPU, COO       {ms:9.2f} ms  peak {peak / 2**30:.2f} GiB",
                  flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
