#!/usr/bin/env python3
"""Fits the predicted times of convolution candidates to measurements. Needs numpy and scikit-learn
(1.9; it grows trees with a part of that library that is not public).

    cargo bench --bench ranking -- --shapes 9000 --seed 7 --seconds 250 --gflop 40 \
        --caps 16,2048 --one-cap --json measured.jsonl
    nice python3 benches/fit_ranking.py measured.jsonl...

What is fitted is the logarithm of measured over modelled time, by boosted trees over the features of
`Cost::features` (src/device/cuda/conv/cost/features.rs), which `features` here repeats: one model for
all methods, passes and number types, so that they learn from each other. Each tree lowers two losses:
the squared error, in which the fastest candidates of a question weigh most, and the cross entropy
between which candidates are fastest and which the predictions take, since only the order matters.

The committed model was fitted to 2,767 random shapes and a table of cuDNN's algorithms on six large
layers; then 500 trees were added by

    python3 benches/fit_ranking.py benches/ranking_h200.jsonl.xz --onto src/device/cuda/conv/fit.bin \
        --trees 500 --rate 0.06 --sample 0.7

for 2,481 shapes more, which are in that file (seeds 90210 and 31337).

Prints how often the candidate that is taken is within 10 % of the fastest on shapes left out, each
fifth in turn; then fits all and writes, in src/device/cuda/conv/, `fit.bin` (laid out as fit.rs
describes) and `cost/expected.json`: predictions that a test compares with what `Cost` computes.
"""
import argparse, json, lzma, math, os, re, struct
from collections import defaultdict

import numpy as np
from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper
from sklearn.ensemble._hist_gradient_boosting.grower import TreeGrower

LAUNCH = 3e-6
# The device that was measured (an H200), as `Properties` has it, and what `Rates::of` makes of that.
CLOCK, SMS, WIRES = 1.98e9, 132, 3.201e9 * 6144
PER_SECOND = 2 * CLOCK * SMS
RATES = dict(bytes=2 * WIRES / 8 * 0.86, f32=128 * PER_SECOND * 0.76, f64=64 * PER_SECOND * 0.9,
             tf32=1024 * PER_SECOND * 0.76, half=2048 * PER_SECOND * 0.74)
# Methods that count their times themselves, which the model then corrects. The kernels without strips or few
# terms that are on tensor cores are a fixed multiple of what these could do, and are not fitted.
COUNTED, FIXED = ("strips", "narrow"), "direct, tensor cores"
SIZE = dict(f32=4, f64=8, f16=2, bf16=2)
PASSES = ["forward", "input gradient", "weight gradient"]
HERE = os.path.join(os.path.dirname(__file__), "..", "src", "device", "cuda", "conv")


def log2(value):
    return math.log2(max(value, 1e-30))


def evenness(value):
    """Powers of two that divide it, up to 16: `evenness` in features.rs."""
    return min((value & -value).bit_length() - 1, 4)


def filled(value, step):
    """How much of whole steps it fills, as a logarithm: `filled` in features.rs."""
    return log2(value / (step * math.ceil(value / step)))


def on_tensor_cores(method, dtype, tf32):
    """Whether a method computes there: `Cost::on_tensor_cores`."""
    if "cuBLAS" in method or "tensor cores" in method:
        return SIZE[dtype] == 2 or tf32
    return tf32 and ("precomputed" in method or "algorithm 1" in method)


class Work:
    """How a candidate cuts its problem: `Work` of cost.rs, from one line of the measurements."""

    def __init__(self, row):
        name, split = row["name"], row["split"]
        self.which = next(p for p in PASSES if f"conv1d {p} " in row["operation"])
        n, k, g, size = row["batch"], row["kernel"], row["groups"], SIZE[row["dtype"]]
        cin, cout, length = row["in"], row["out"], row["length"]
        self.span = row["dilation"] * (k - 1)
        self.out_length = lo = (length - 1) // row["stride"] + 1
        number = lambda pattern, other: int(m.group(1)) if (m := re.search(pattern, split)) else other
        self.chunk = number(r"(\d+) samples", n)
        self.taps = number(r"(\d+) taps", k)
        self.pieces = number(r"in (\d+) (?:pieces|turns)", 1)
        self.method, self.moved, self.launches, self.calls, self.own = name, 0.0, 1.0, 1, 0
        x, y, w = n * cin * length * size, n * cout * lo * size, cout * (cin // g) * k * size
        c, m, positions = cin // g, cout // g, self.chunk * lo
        depth = c * self.taps
        if self.which == "forward":
            self.product = (m, positions, depth, g)
        elif self.which == "weight gradient":
            self.product = (m, depth, positions, g)
        else:
            self.product = (c, self.chunk * (lo if row["stride"] == 1 else length), m * self.taps, g)
        if name.startswith("cuDNN"):
            blocks, last = self.taps < k, "channels last" in name
            pads = blocks or self.span % 2 == 1
            if last:
                self.moved, self.launches = 2.0 * (x + y + w), 3.0
            elif pads:
                self.moved, self.launches = 2.0 * x, 2.0
            # What `library::Method::staging` takes; the rest is the library's own.
            up = lambda elements: -(-elements * size // 256) * 256
            staged = 0
            if last or pads:
                staged += up(self.chunk * cin * (length + self.span if pads else length))
            if last:
                staged += up(self.chunk * cout * lo) + up(cout * c * k)
            elif blocks:
                staged += up(cout * c * self.taps)
            self.own = row["workspace"] - staged
        elif "cuBLAS" in name:
            packed, unfolds = "packed" in name, "unfold" in name
            if "for cuBLAS" in split:
                self.method, self.own = name + ", large", 32 << 20
            if unfolds:
                self.moved += x + n * cin * k * lo * size
            elif packed:
                self.moved += 2.0 * x
            if packed:
                self.moved += 2.0 * y
            # `product::Method::calls`; products of the samples one by one count together.
            sums = self.which == "weight gradient"
            self.calls = 1 if packed else self.chunk if g > self.chunk or sums else g
            self.launches = self.calls + 2.0
            line, turns = (positions, g) if packed else (lo, g if sums else g * self.chunk)
            self.product = {"forward": (m, line, c * k, turns), "input gradient": (c * k, line, m, turns),
                            "weight gradient": (m, c * k, line, turns)}[self.which]
        elif name.startswith(COUNTED):
            if self.which != "weight gradient":
                rows, terms = (m, c) if self.which == "forward" else (c, m)
                parts = number(r"(\d+) channels at", rows), number(r"over (\d+) at", terms)
                self.pieces = -(-rows // parts[0]) * -(-terms // parts[1])
        elif self.pieces > 1:
            self.method = "direct in pieces"


def own_tiles(row, work):
    """Rows of a tile of our own kernels, tiles, and what they compute over what is needed:
    `Cost::own_tiles`."""
    g, k, lo, length = row["groups"], row["kernel"], work.out_length, row["length"]
    c, m, stride = row["in"] // g, row["out"] // g, row["stride"]
    cover = lambda rows, columns, a, b, turns: (
        -(-rows // a) * -(-columns // b) * turns, -(-rows // a) * a * (-(-columns // b) * b) / (rows * columns))
    if work.method == "depthwise" and work.which != "weight gradient" and (stride, row["dilation"]) == (1, 1):
        rows, line = row["batch"] * row["out" if work.which == "forward" else "in"], \
            lo if work.which == "forward" else length
        lanes = 1 << (min(max(-(-line // 4), 1), 256) - 1).bit_length()
        return (lanes, *cover(rows, line, 256 // lanes, 4 * lanes, 1))
    if not work.method.startswith("direct"):
        return 0, 1, 1.0
    if work.which == "weight gradient":
        if min(m, 64) * min(c * k, 64) < 256:
            return -1, 1, 1.0
        return (64, *cover(m, c * k, 64, 64, g))
    rows, columns, turns = m, row["batch"] * lo, g
    if work.which == "input gradient":
        rows, columns, turns = c, row["batch"] * -(-length // stride), g * min(stride, length)
    if rows <= 16:
        a, b = (1 if rows == 1 else 4 if rows <= 4 else 16), 256
    else:
        count, over = cover(rows, columns, 128, 128, turns)
        a = b = 128 if over / cover(rows, columns, 64, 64, 1)[1] < 1.3 and count >= SMS else 64
    return (a, *cover(rows, columns, a, b, turns))


def features(row, work, methods):
    """(features, modelled seconds): `Cost::features` and `Cost::modelled`."""
    dtype, g = row["dtype"], row["groups"]
    size, n, k, length = SIZE[dtype], row["batch"], row["kernel"], row["length"]
    c, m, lo, chunk, taps = row["in"] // g, row["out"] // g, work.out_length, work.chunk, work.taps
    name = work.method
    tensor = on_tensor_cores(name, dtype, row["tf32"])
    kind = {"f16": 3, "bf16": 2}.get(dtype, 1 if tensor else 0)
    rate = RATES["f64"] if dtype == "f64" else RATES["f32"] if not tensor else \
        RATES["half" if size == 2 else "tf32"]
    x, y = chunk * row["in"] * length * size, chunk * row["out"] * lo * size
    w = row["out"] * c * taps * size
    arithmetic = 2.0 * (chunk * row["out"] * lo) * c * taps / rate
    memory = (x + y + w) / RATES["bytes"]
    chunks = n / chunk
    repeated = chunks * (k / taps)
    staged = work.moved / RATES["bytes"] + chunks * work.launches * LAUNCH
    seconds = staged + repeated * (LAUNCH + max(arithmetic, memory))
    rows, columns, depth, turns = work.product
    tiles = lambda a, b: math.ceil(rows / a) * math.ceil(columns / b) * turns
    over = lambda a, b: -filled(rows, a) - filled(columns, b)
    side, own, own_over = own_tiles(row, work)
    # The lines of the operands that are least even; where those are odd, bf16 has the fewest kernels.
    lines = min(evenness(c), evenness(m))
    if "cuBLAS" in name:
        lines = min(evenness(c * k), evenness(chunk * lo if "packed" in name else lo))
    ends = min(evenness(lo), evenness(length))
    useful = max(33.0 - taps, 1.0)
    list_ = [
        # The method and what it is made of.
        methods[name], PASSES.index(work.which), kind, name.startswith("cuDNN"),
        "channels last" in name, "packed" in name, "tensor cores" in name,
        # Sizes.
        log2(m), log2(c), log2(chunk * lo), log2(chunk), log2(lo), log2(length), log2(taps), log2(k),
        log2(g), log2(row["stride"]), log2(row["dilation"]),
        # Modelled times, and how often what is repeated.
        log2(arithmetic * 1e6), log2(memory * 1e6), log2(arithmetic / memory), log2(staged / seconds),
        log2(repeated), log2(seconds * 1e6), log2(work.calls * chunks),
        # The library's workspace, which tells which kernel it takes; pieces of sums.
        log2(1 + max(work.own - 2048, 0) / (x + y) * 1024), log2(1 + work.own), log2(work.pieces),
        # What wide accesses need.
        *map(evenness, (lo, length, c, m, chunk, row["in"], chunk * lo, c * taps)),
        lines, ends, *((lines, ends) if dtype == "bf16" else (8, 8)),
        # The product, and tiles that it may be cut into: how many, how full, in how full waves.
        log2(rows), log2(columns), log2(depth), log2(turns),
        log2(tiles(64, 64) / SMS), log2(tiles(128, 128) / SMS),
        over(64, 64), over(128, 128), over(128, 256),
        filled(tiles(64, 64), SMS), filled(tiles(128, 128), SMS), filled(tiles(128, 256), SMS),
        # Tiles of 32 that a tiled FFT takes for what its taps leave of one.
        log2(math.ceil(lo / useful) * 32 / lo),
        work.span % 2 == 1, filled(m, 32), filled(c * taps, 32),
        # Tiles of our own kernels.
        side, log2(own / SMS), log2(own_over), filled(own, SMS),
        log2(c * taps), log2(1 + work.span / lo), chunk == n, min(work.span // 2, 32),
    ]
    return list_, seconds


class Data:
    def __init__(self, rows, methods, base):
        works = [Work(row) for row in rows]
        described = [features(row, work, methods) for row, work in zip(rows, works)]
        self.x = np.array([f for f, _ in described], float)
        self.modelled = np.array([seconds for _, seconds in described])
        # What was counted is what was predicted, without the correction of the model that was built in.
        counted = np.array([work.method.startswith(COUNTED) for work in works])
        self.modelled[counted] = [row["predicted"] for row, it in zip(rows, counted) if it]
        known = np.array([base is not None and work.method in base.known for work in works])
        if (both := counted & known).any():
            self.modelled[both] /= seconds(1.0, base.value(base.binned(self.x[both])))
        self.measured = np.array([row["measured"] for row in rows])
        self.workspace = np.array([row["workspace"] for row in rows])
        self.cap = np.array([row["cap"] for row in rows])
        number = lambda keys: np.unique([repr(key) for key in keys], return_inverse=True)[1]
        self.group = number((row["operation"], row["tf32"], row["cap"]) for row in rows)
        self.shape = number((row["operation"].split(": ")[-1], row["dtype"], row["tf32"]) for row in rows)
        fastest = np.full(self.group.max() + 1, np.inf)
        np.minimum.at(fastest, self.group, self.measured)
        self.fastest = fastest[self.group]

    def loss(self, predicted, rows):
        """By cap, the times of what the predictions take over the fastest."""
        groups, losses = defaultdict(list), defaultdict(list)
        for index in np.flatnonzero(rows):
            groups[self.group[index]].append(index)
        for group in map(np.array, groups.values()):
            near = group[predicted[group] <= predicted[group].min() * 1.05]
            taken = near[np.argmin(self.workspace[near])]
            losses[self.cap[taken]].append(self.measured[taken] / self.fastest[taken])
        return losses


class Base:
    """The model in a file, to which trees can be added."""

    NODE = np.dtype([("is_leaf", "u1"), ("feature_idx", "u1"), ("bin_threshold", "u1"), ("value", "f8"),
                     ("left", "i4"), ("right", "i4")])

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        at = 8

        def take(form):
            nonlocal at
            out = struct.unpack_from("<" + form, data, at)
            at += struct.calcsize("<" + form)
            return out

        _, features, methods, trees, self.start, step = take("IHHIff")
        self.methods = []
        for _ in range(methods):
            length, = take("B")
            self.methods.append(take(f"{length}s")[0].decode())
        # Methods that are new come after these.
        self.known = list(self.methods)
        self.thresholds = [np.array(take(f"{take('B')[0]}f"), float) for _ in range(features)]

        def node(nodes):
            index, feature = len(nodes), take("B")[0]
            nodes.append(None)
            if feature == 255:
                nodes[index] = (1, 0, 0, take("h")[0] * step, 0, 0)
                return index
            bin_, = take("B")
            left, right = node(nodes), node(nodes)
            nodes[index] = (0, feature, bin_, 0.0, left, right)
            return index

        self.trees = []
        for _ in range(trees):
            node(nodes := [])
            self.trees.append(np.array(nodes, self.NODE))

    def binned(self, x):
        return np.stack([np.searchsorted(t, x[:, i]) for i, t in enumerate(self.thresholds)], 1).astype(np.uint8)

    def value(self, binned):
        """What the trees add up to, for every row of bins."""
        total, rows = np.full(len(binned), self.start), np.arange(len(binned))
        for tree in self.trees:
            at = np.zeros(len(binned), int)
            while (inner := tree["is_leaf"][at] == 0).any():
                it = tree[at]
                left = binned[rows, it["feature_idx"]] <= it["bin_threshold"]
                at = np.where(inner, np.where(left, it["left"], it["right"]), at)
            total += tree["value"][at]
        return total


class Model:
    """Boosted trees; `value` is what they add up to for every row of the data."""

    def __init__(self, data, rows, options, base=None):
        rng = np.random.default_rng(0)
        bins = _BinMapper(n_bins=255, random_state=0)
        bins.fit(data.x[rows])
        bins.bin_thresholds_ = [t.astype(np.float32).astype(float) for t in bins.bin_thresholds_]
        if base:
            bins.bin_thresholds_ = base.thresholds
            bins.n_bins_non_missing_ = np.array([len(t) + 1 for t in base.thresholds], np.uint32)
        self.thresholds = bins.bin_thresholds_
        every = bins.transform(data.x)
        inside = np.asfortranarray(every[rows])
        every = np.ascontiguousarray(every)
        target = np.log(data.measured / data.modelled)[rows]
        slower = np.log(data.measured / data.fastest)[rows]
        weight = options.floor + np.exp(-options.sharpness * slower)
        group = np.unique(data.group[rows], return_inverse=True)[1]

        def shares(score):
            top = np.full(group.max() + 1, -np.inf)
            np.maximum.at(top, group, score)
            share = np.exp(score - top[group])
            return share / np.bincount(group, share)[group]

        wanted, modelled = shares(-slower / options.apart), np.log(data.modelled[rows])
        self.start = float(np.float32(np.average(target, weights=weight)))
        self.value, self.trees = np.full(len(data.x), self.start), []
        if base:
            self.start, self.value, self.trees = base.start, base.value(every), list(base.trees)
        shapes = np.unique(data.shape[rows], return_inverse=True)[1]
        for turn in range(options.trees):
            now = self.value[rows]
            gradient, curvature = weight * (now - target), weight.copy()
            # The order is worth learning once times are about right.
            if base or turn >= options.trees // 8:
                share = shares(-(now + modelled) / options.heat)
                gradient += options.order * (wanted - share) / options.heat
                curvature += options.order * np.maximum(share * (1 - share), 0.02) / options.heat**2
            drawn = rng.random(shapes.max() + 1)[shapes] < options.sample
            gradient, curvature = gradient * drawn, curvature * drawn
            grower = TreeGrower(
                inside, gradient.astype(np.float32), curvature.astype(np.float32),
                max_leaf_nodes=options.leaves, min_samples_leaf=options.least, l2_regularization=1.0,
                shrinkage=options.rate, n_bins=256, n_bins_non_missing=bins.n_bins_non_missing_,
                min_hessian_to_split=1e-3, feature_fraction_per_split=options.share, rng=rng)
            grower.grow()
            tree = grower.make_predictor(bins.bin_thresholds_)
            self.value += tree.predict_binned(every, bins.missing_values_bin_idx_, 1)
            self.trees.append(tree.nodes)

    def pack(self, methods):
        """The file, and the step that its leaves are multiples of."""
        step = max(abs(t["value"][t["is_leaf"] != 0]).max() for t in self.trees) / 32767
        step = float(np.float32(step))
        out = [b"capgrfit", struct.pack("<IHHIff", 1, len(self.thresholds), len(methods),
                                        len(self.trees), self.start, step)]
        for name in methods:
            out.append(struct.pack("<B", len(name)) + name.encode())
        for thresholds in self.thresholds:
            out.append(struct.pack(f"<B{len(thresholds)}f", len(thresholds), *thresholds))

        def node(tree, index):
            it = tree[index]
            if it["is_leaf"]:
                out.append(struct.pack("<Bh", 255, int(np.clip(round(it["value"] / step), -32767, 32767))))
                return
            out.append(struct.pack("<BB", it["feature_idx"], it["bin_threshold"]))
            node(tree, it["left"])
            node(tree, it["right"])

        for tree in self.trees:
            node(tree, 0)
        return b"".join(out), step

    def rounded(self, x, step):
        """The sum for one row with leaves as they are stored."""
        sum_ = 0
        bins = [np.searchsorted(t, v) for t, v in zip(self.thresholds, x)]
        for tree in self.trees:
            it = tree[0]
            while not it["is_leaf"]:
                left = bins[it["feature_idx"]] <= it["bin_threshold"]
                it = tree[it["left"] if left else it["right"]]
            sum_ += int(np.clip(round(it["value"] / step), -32767, 32767))
        return self.start + sum_ * step


def measured(path):
    """What is in a file, one row a candidate."""
    with (lzma.open(path, "rt") if path.endswith(".xz") else open(path)) as file:
        for line in file:
            question = json.loads(line)
            for name, split, workspace, time, *predicted in question.pop("candidates"):
                row = question | {"name": name, "split": split, "workspace": workspace, "measured": time}
                row["predicted"] = predicted[0] if predicted else None
                yield row


def fitted(row):
    """Whether a row says what the methods take now. Older files, without predictions, were measured with other
    kernels for rows of few channels."""
    if row["name"].startswith(FIXED):
        return False
    if row["predicted"] is None:
        few = row["name"].startswith("direct") and own_tiles(row, Work(row))[0] == -1
        return row["name"] != "depthwise" and not few
    return True


def seconds(modelled, value):
    return modelled * np.exp(np.clip(value, -3.0, 8.0))


def expected(rows, data, model, step):
    """Rows for the test: of each method, pass and number type the first few, evenly spread."""
    kinds = defaultdict(list)
    for index, row in enumerate(rows):
        work = Work(row)
        kinds[(work.method, work.which, bool(row["split"]))].append((index, work))
    keep = ["batch", "in", "out", "length", "kernel", "stride", "dilation", "groups", "dtype", "tf32"]
    lines = []
    for turn, (_, found) in enumerate(sorted(kinds.items())):
        index, work = found[(turn * 7919) % len(found)]
        row = {key: rows[index][key] for key in keep}
        row |= {"pass": work.which, "method": work.method, "chunk": work.chunk, "taps": work.taps,
                "pieces": work.pieces, "own": work.own}
        if work.method.startswith(COUNTED):
            row["counted"] = float(data.modelled[index])
        row["seconds"] = float(seconds(data.modelled[index], model.rounded(data.x[index], step)))
        lines.append(json.dumps(row))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+")
    parser.add_argument("--trees", type=int, default=900)
    parser.add_argument("--leaves", type=int, default=63, help="of a tree")
    parser.add_argument("--least", type=int, default=20, help="rows of a leaf")
    parser.add_argument("--rate", type=float, default=0.12, help="share of a tree that is added")
    parser.add_argument("--share", type=float, default=0.5, help="of the features, for each split")
    parser.add_argument("--sample", type=float, default=1.0, help="of the shapes, for each tree")
    parser.add_argument("--onto", metavar="FIT", help="keep the trees of this file and add to them")
    parser.add_argument("--sharpness", type=float, default=1.5, help="how much less slow rows weigh")
    parser.add_argument("--floor", type=float, default=0.05, help="what the slowest rows weigh")
    parser.add_argument("--order", type=float, default=0.2, help="weight of the order")
    parser.add_argument("--heat", type=float, default=0.2, help="how near predictions share a choice")
    parser.add_argument("--apart", type=float, default=0.1, help="how near times are as good")
    parser.add_argument("--folds", type=int, default=5, help="how many of the fifths are left out in turn")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    rows = [row for path in options.files for row in measured(path) if fitted(row)]
    base = Base(options.onto) if options.onto else None
    names = list(base.known) if base else []
    names += sorted({Work(row).method for row in rows} - set(names))
    methods = {name: index for index, name in enumerate(names)}
    data = Data(rows, methods, base)
    losses = defaultdict(list)
    for fold in range(options.folds):
        out = data.shape % 5 == fold
        predicted = seconds(data.modelled, Model(data, ~out, options, base).value)
        for cap, more in data.loss(predicted, out).items():
            losses[cap] += more
    for cap, some in sorted(losses.items()):
        some = np.array(some)
        print(f"cap {cap:>12}: {len(some):>4} left out, {100 * np.mean(some <= 1.1):.1f} % within 10 %, "
              f"mean {np.exp(np.log(some).mean()):.3f}, worst {some.max():.2f}", flush=True)
    if options.dry:
        return
    model = Model(data, np.full(len(rows), True), options, base)
    packed, step = model.pack(names)
    with open(os.path.join(HERE, "fit.bin"), "wb") as file:
        file.write(packed)
    with open(os.path.join(HERE, "cost", "expected.json"), "w") as file:
        file.write(expected(rows, data, model, step))


if __name__ == "__main__":
    main()
