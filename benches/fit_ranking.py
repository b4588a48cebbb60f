#!/usr/bin/env python3
"""Fits the factors of predicted convolution times to measurements, and writes them as Rust.

    cargo bench --bench ranking -- --shapes 400 --seed 7 --json measured.jsonl
    python3 benches/fit_ranking.py measured.jsonl... > src/device/cuda/conv/fit.rs

The features are those of `Cost::features` in src/device/cuda/conv/cost.rs; for each pass, method and
number type the logarithm of measured over modelled time is fitted by ridge regression, the fastest
candidates of a shape weighing most, since only their order matters. Prints to the error stream how
often the fitted order is within 10 % of the fastest on a fifth of the shapes that was left out.
"""
import argparse, json, math, re, sys
from collections import defaultdict

import numpy as np

LAUNCH = 3e-6
# What `Rates::of` gives on the device that was measured (an H200).
RATES = dict(bytes=4.23e12, f32=50.8e12, f64=30.1e12, tf32=407e12, half=792e12, sms=132)
SIZE = dict(f32=4, f64=8, f16=2, bf16=2)
PASSES = ["forward", "weight gradient", "input gradient"]


def log2(value):
    return math.log2(max(value, 1))


def on_tensor_cores(name, kind):
    """Whether a method computes there: `Cost::on_tensor_cores`."""
    if "cuBLAS" in name or "tensor cores" in name:
        return kind != "f32"
    return kind == "tf32" and ("precomputed" in name or "algorithm 1" in name)


def describe(row):
    """(class, features, core seconds, staged seconds, repetitions) of one measurement."""
    name, split, dtype = row["name"], row["split"], row["dtype"]
    which = next(p for p in PASSES if f"conv1d {p} " in row["operation"])
    n, k, g, size = row["batch"], row["kernel"], row["groups"], SIZE[dtype]
    cin, cout, length = row["in"], row["out"], row["length"]
    span = row["dilation"] * (k - 1)
    lo = (length + span - span - 1) // row["stride"] + 1
    chunk = int(m.group(1)) if (m := re.search(r"(\d+) samples", split)) else n
    taps = int(m.group(1)) if (m := re.search(r"(\d+) taps", split)) else k
    pieces = "pieces" in split
    kind = "half" if dtype in ("f16", "bf16") else "tf32" if row["tf32"] else "f32"
    tensor_cores = on_tensor_cores(name, kind)
    if kind == "tf32" and not tensor_cores:
        kind = "f32"
    rate = RATES["f64"] if dtype == "f64" else RATES[kind if tensor_cores else "f32"]
    c, m = cin // g, cout // g

    def sizes(samples, taps):
        return (samples * cin * length * size, samples * cout * lo * size, cout * c * taps * size)

    x, y, w = sizes(n, k)
    moved, launches, method = 0.0, 1.0, name
    if name.startswith("cuDNN"):
        uneven = span % 2 == 1
        if "channels last" in name:
            moved, launches = 2 * (x + y + w), 3
        elif uneven or taps < k:
            moved, launches = 2 * x, 2
    elif "cuBLAS" in name:
        packed, unfolds = "packed" in name, "unfold" in name
        if "for cuBLAS" in split:
            method += ", large"
        if unfolds:
            moved += x + n * cin * k * lo * size
        elif packed:
            moved += 2 * x
        if packed:
            moved += 2 * y
        if packed:
            calls = 1
        elif g > chunk or which == "weight gradient":
            calls = chunk
        else:
            calls = g
        launches = calls + 2
    elif pieces:
        method = "direct in pieces"
    positions = chunk * lo
    operations = 2.0 * chunk * cout * lo * c * taps
    cx, cy, cw = sizes(chunk, taps)
    core = LAUNCH + max(operations / rate, (cx + cy + cw) / RATES["bytes"])
    lc, lm, lp, lk, ll = log2(c), log2(m), log2(positions), log2(taps), log2(lo)

    def tiles(rows, columns):
        return math.log2(math.ceil(rows / 128) * math.ceil(columns / 128) * g / RATES["sms"])

    filled = {"forward": (m, positions), "input gradient": (c, positions),
              "weight gradient": (m, c * taps)}[which]
    filled = tiles(*filled)
    balance = math.log2((operations / rate) / ((cx + cy + cw) / RATES["bytes"]))
    balance = min(max(balance, -8), 8)
    useful = max(33.0 - taps, 1.0)
    fft = math.ceil(lo / useful) * 32.0 / lo
    features = [
        1, lm, min(lm, 5), min(lm, 7), lc, min(lc, 5), min(lc, 7),
        lp, min(lp, 10), min(lp, 14), min(lp, 18), lk, min(lk, 2),
        log2(g), g > 1, ll, min(ll, 5), min(ll, 9),
        min(max(filled, -10), 0), min(max(filled, 0), 2),
        min(balance, 0), max(balance, 0), row["stride"] > 1, row["dilation"] > 1,
        c % 8 != 0, m % 8 != 0, lo % 8 != 0, math.log2(fft),
    ]
    chunks, blocks = n / chunk, k / taps
    staged = moved / RATES["bytes"] + chunks * launches * LAUNCH
    return (f"{which} | {method} | {kind}", np.array(features, float), core, staged, chunks * blocks)


def key(row):
    return (row["operation"], row["tf32"], row["cap"])


def fit(samples, ridge):
    x = np.array([features for features, _, _ in samples])
    y = np.array([target for _, target, _ in samples])
    weight = np.sqrt(np.array([weight for _, _, weight in samples]))[:, None]
    mean = np.average(y, weights=weight[:, 0] ** 2)
    xw, yw = x * weight, (y - mean) * weight[:, 0]
    penalty = ridge * np.eye(x.shape[1])
    penalty[0, 0] = 1e-6
    solution = np.linalg.solve(xw.T @ xw + penalty, xw.T @ yw)
    solution[0] += mean
    return solution


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--ridge", type=float, default=3.0)
    parser.add_argument("--sharpness", type=float, default=2.0)
    parser.add_argument("--caution", type=float, default=0.5)
    options = parser.parse_args()
    rows = [json.loads(line) for path in options.files for line in open(path)]
    fastest = defaultdict(lambda: math.inf)
    for row in rows:
        fastest[key(row)] = min(fastest[key(row)], row["measured"])

    def train(rows):
        classes = defaultdict(list)
        for row in rows:
            name, features, core, staged, times = describe(row)
            target = max(row["measured"] - staged, 0.2 * row["measured"]) / (times * core)
            close = (fastest[key(row)] / row["measured"]) ** options.sharpness
            classes[name].append((features, math.log(target), 0.02 + close))
        return {name: cautious(samples) for name, samples in classes.items()}

    def cautious(samples):
        """A fit, plus a share of the error that it has on samples left out: the fastest of many
        predictions is often one that is wrong."""
        squares, weights = 0.0, 0.0
        for part in range(4):
            inside = [s for i, s in enumerate(samples) if i % 4 != part]
            if len(inside) < 8:
                continue
            solution = fit(inside, options.ridge)
            for features, target, weight in samples[part::4]:
                squares += weight * (target - features @ solution) ** 2
                weights += weight
        solution = fit(samples, options.ridge)
        solution[0] += options.caution * (math.sqrt(squares / weights) if weights else 1.0)
        return solution

    def predict(table, row):
        name, features, core, staged, times = describe(row)
        if name not in table:
            return staged + times * core * math.e
        factor = min(max(float(table[name] @ features), -3), 8)
        return staged + times * core * math.exp(factor)

    def score(table, rows):
        groups = defaultdict(list)
        for row in rows:
            groups[key(row)].append((predict(table, row), row["measured"], row["workspace"]))
        losses = defaultdict(list)
        for (_, _, cap), group in groups.items():
            best = min(time for time, _, _ in group)
            taken = min((g for g in group if g[0] <= best * 1.05), key=lambda g: g[2])
            losses[cap].append(taken[1] / min(measured for _, measured, _ in group))
        return losses

    shapes = sorted({(row["operation"].split(": ")[-1], row["dtype"], row["tf32"]) for row in rows})
    held = set(shapes[::5])
    out = lambda row: (row["operation"].split(": ")[-1], row["dtype"], row["tf32"]) in held
    table = train([row for row in rows if not out(row)])
    for cap, losses in sorted(score(table, [row for row in rows if out(row)]).items()):
        close = sum(loss <= 1.1 for loss in losses) / len(losses)
        mean = math.exp(sum(map(math.log, losses)) / len(losses))
        print(f"cap {cap:>12}: {len(losses):>4} left out, {100 * close:.1f} % within 10 %, "
              f"mean {mean:.3f}, worst {max(losses):.2f}", file=sys.stderr)

    table = train(rows)
    print(HEAD)
    print("#[rustfmt::skip]")
    print("static FITTED: &[(&str, [f32; FEATURES])] = &[")
    for name in sorted(table, key=lambda name: name.encode()):
        numbers = ", ".join(f"{value:.4}" for value in table[name])
        print(f'    ("{name}", [{floats(numbers)}]),')
    print("];")


def floats(text):
    """Every number with a point or an exponent, as Rust wants."""
    return ", ".join(n if "." in n or "e" in n else n + ".0" for n in text.split(", "))


HEAD = '''//! Factors of the predicted times, fitted to measurements of `cargo bench --bench ranking -- --json`
//! by `benches/fit_ranking.py`, which writes this file.

/// How many numbers a factor depends on: `Cost::features`.
pub(super) const FEATURES: usize = 28;

/// The coefficients of a method, by pass, name and number type.
pub(super) fn factors(class: &str) -> Option<&'static [f32; FEATURES]> {
    FITTED.binary_search_by(|(name, _)| (*name).cmp(class)).ok().map(|index| &FITTED[index].1)
}
'''

main()
