//! The cap promise over generated triples of shape, cap and dtype, at sizes where libraries begin
//! to want workspaces: the meter and the driver both say that the cap was kept, and the results
//! are right.

mod support;

use capgrad::{DType, Device, KIB, MIB, Purpose, Ranking, Tape, Tensor};
use support::conv::{Operands, Sizes};
use support::{
    Kind, Numbers, TF32_TOLERANCE, kinds, relative_error, tolerance, values, workspace_peak,
};

/// One case; `number` makes it again.
#[derive(Debug)]
struct Triple {
    number: usize,
    sizes: Sizes,
    cap: Option<u64>,
    dtype: DType,
    tf32: bool,
    ranking: Ranking,
}

impl Triple {
    fn new(number: usize) -> Triple {
        let mut numbers = Numbers(number as u64);
        let caps = [Some(0), Some(KIB), Some(64 * KIB), Some(MIB), Some(16 * MIB), None];
        let dtypes = [
            (DType::F32, false),
            (DType::F32, true),
            (DType::F64, false),
            (DType::F16, false),
            (DType::BF16, false),
        ];
        let (dtype, tf32) = dtypes[numbers.below(5)];
        let cap = caps[numbers.below(6)];
        let ranking = if numbers.below(8) == 0 { Ranking::Measured } else { Ranking::Predicted };
        let sizes = loop {
            let sizes = draw(&mut numbers);
            if sizes.fits() {
                break sizes;
            }
        };
        Triple { number, sizes, cap, dtype, tf32, ranking }
    }
}

fn draw(numbers: &mut Numbers) -> Sizes {
    // Half of them small, where the edges are.
    let mut up_to = |most: usize| {
        let most = if numbers.below(2) == 0 { most } else { most.min(8) };
        1 + numbers.below(most)
    };
    let (n, l, k) = (up_to(64), up_to(200), up_to(9));
    let (stride, dilation) = (up_to(3), up_to(3));
    let (left, right) = (up_to(6) - 1, up_to(6) - 1);
    let (groups, c_in, c_out) = match up_to(6) {
        1 => {
            let channels = up_to(96);
            (channels, channels, channels)
        }
        2 => {
            let groups = up_to(12);
            (groups, groups * up_to(96 / groups), groups * up_to(96 / groups))
        }
        _ => (1, up_to(96), up_to(96)),
    };
    Sizes { n, c_in, c_out, l, k, stride, dilation, groups, left, right }
}

/// All places of `count` elements, or the first, the last and a sample of those between.
fn places(count: usize, all: bool, numbers: &mut Numbers) -> Vec<usize> {
    if all || count <= 600 {
        return (0..count).collect();
    }
    let ends = (0..50).chain(count - 50..count);
    ends.chain((0..500).map(|_| numbers.below(count))).collect()
}

fn check(triple: &Triple, device: &Device) {
    let Triple { number, ref sizes, cap, dtype, tf32, ranking } = *triple;
    match cap {
        Some(cap) => device.set_workspace_cap(cap),
        None => device.remove_workspace_cap(),
    }
    device.set_ranking(ranking);
    let _tf32 = device.tf32_scope(tf32);
    let count = |shape: [usize; 3]| shape.iter().product::<usize>();
    let counts = [sizes.y_shape(), sizes.x_shape(), sizes.w_shape()].map(count);
    // Where a few numbers are the whole result, terms that cancel would leave rounding behind.
    let exact = counts.into_iter().chain([sizes.c_out]).any(|count| count < 8);
    let o = Operands::new(*sizes, dtype, number as u64, exact);

    let tape = Tape::new();
    let leaves = [o.x(device), o.w(device), o.b(device)];
    let [x, w, b] = leaves.map(|leaf| tape.variable(leaf).unwrap());
    let dy = o.dy(device);
    device.synchronize().unwrap();
    device.reset_peak();
    let y = x.conv1d(&w, Some(&b), &sizes.options()).unwrap();
    let value = y.tensor().clone();
    let gradients = y.backward_with(dy).unwrap();
    device.synchronize().unwrap();
    let report = device.report();

    let workspace = workspace_peak(device);
    assert!(cap.is_none_or(|cap| workspace <= cap), "{triple:?} took {workspace}");
    assert_eq!(report.live[Purpose::Workspace], 0, "{triple:?}");
    if let Some(driver) = report.driver {
        // The driver rounds each block up to 512 bytes. Those of before: the operands, dy, and the
        // device's scratch.
        let most = report.peak + (report.allocations + 5) * 512;
        let used = driver.pool_used_peak;
        assert!(used <= most, "{triple:?}: the driver's {used}, the meter's {}", report.peak);
    }

    let terms = counts[0] * (sizes.c_in / sizes.groups) * sizes.k;
    let all = terms <= 1 << 21;
    let mut numbers = Numbers(number as u64);
    let mut compare =
        |what: &str, out: &Tensor, whole: &dyn Fn() -> Vec<f64>, at: &dyn Fn(usize) -> f64| {
            let places = places(out.elements(), all, &mut numbers);
            let out = values(out);
            let expected: Vec<f64> =
                if all { whole() } else { places.iter().map(|&place| at(place)).collect() };
            let out: Vec<f64> = places.iter().map(|&place| out[place]).collect();
            let error = relative_error(&out, &expected);
            let most = if tf32 { TF32_TOLERANCE } else { tolerance(dtype) };
            assert!(error <= most, "{what} of {triple:?} is {error:e} off");
        };
    let (x_at, w_at, dy_at) = (|i: usize| o.x[i], |i: usize| o.w[i], |i: usize| o.dy[i]);
    let per_channel = sizes.out_length();
    let bias = |i: usize| o.b[i / per_channel % sizes.c_out];
    compare("y", &value, &|| sizes.forward(&o.x, &o.w, Some(&o.b)), &|i| {
        sizes.forward_at(x_at, w_at, i) + bias(i)
    });
    compare("dx", gradients.get(&x).unwrap(), &|| sizes.input_gradient(&o.dy, &o.w), &|i| {
        sizes.input_gradient_at(dy_at, w_at, i)
    });
    compare("dw", gradients.get(&w).unwrap(), &|| sizes.weight_gradient(&o.x, &o.dy), &|i| {
        sizes.weight_gradient_at(x_at, dy_at, i)
    });
    let db = sizes.bias_gradient(&o.dy);
    compare("db", gradients.get(&b).unwrap(), &|| db.clone(), &|i| db[i]);
}

#[test]
fn the_cap_is_kept_and_the_results_are_right_for_generated_triples() {
    for kind in kinds() {
        // On the CPU the same is tested with smaller shapes, and more of them.
        let (count, workers) = if kind == Kind::Cuda { (1_000, 8) } else { (100, 2) };
        std::thread::scope(|threads| {
            for worker in 0..workers {
                threads.spawn(move || {
                    let device = kind.poisoned();
                    let base = device.live_bytes();
                    for number in (worker..count).step_by(workers) {
                        check(&Triple::new(number), &device);
                        assert_eq!(device.live_bytes(), base, "after triple {number}");
                    }
                });
            }
        });
    }
}
