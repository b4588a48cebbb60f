//! Reductions, normalisations, pooling and losses against their definitions over f64.

mod support;

use capgrad::{CrossEntropyOptions, DType, Device, Reduction, Result, Tape, Tensor, Var};
use support::cases::labels;
use support::devices;
use support::ops::*;

fn values(x: Result<Var>) -> Vec<f64> {
    x.and_then(|x| x.tensor().to_f64_vec()).expect("a result")
}

/// Some shapes, the last of them large enough for several threads.
const SHAPES: [&[usize]; 6] = [&[7], &[1, 1], &[2, 3], &[3, 1, 5], &[2, 3, 2, 3], &[61, 47, 13]];

fn each_shape(check: impl Fn(&Device, &'static [usize], &[f64], &Var)) {
    for device in devices() {
        for (seed, shape) in SHAPES.into_iter().enumerate() {
            let numbers = data(seed as u64, shape.iter().product(), (-2.0, 2.0));
            check(&device, shape, &numbers, &constant(&device, shape, &numbers));
        }
    }
}

/// The elements along `axis`, for each place along the others in order.
fn lanes(shape: &[usize], axis: usize, numbers: &[f64]) -> Vec<Vec<f64>> {
    let mut kept = shape.to_vec();
    kept[axis] = 1;
    let lane = |place: &Vec<usize>| {
        let at = |i| {
            let mut place = place.clone();
            place[axis] = i;
            numbers[position(shape, &place)]
        };
        (0..shape[axis]).map(at).collect()
    };
    places(&kept).iter().map(lane).collect()
}

#[test]
fn sums_and_means_add_up_the_named_axes() {
    each_shape(|_, shape, numbers, x| {
        let total: f64 = numbers.iter().sum();
        assert!((values(x.sum())[0] - total).abs() < 1e-10);
        assert!((values(x.mean())[0] - total / numbers.len() as f64).abs() < 1e-12);
        for set in 1..1u32 << shape.len() {
            let axes: Vec<isize> =
                (0..shape.len() as isize).filter(|axis| set >> axis & 1 == 1).collect();
            let mut kept = shape.to_vec();
            axes.iter().for_each(|&axis| kept[axis as usize] = 1);
            let mut sums = vec![0.0; kept.iter().product()];
            for (place, number) in places(shape).iter().zip(numbers) {
                sums[position(&kept, place)] += number;
            }
            let count = (numbers.len() / sums.len()) as f64;
            let means: Vec<f64> = sums.iter().map(|sum| sum / count).collect();
            assert_eq!(x.sum_axes(&axes, true).unwrap().dims(), kept);
            assert_eq!(x.sum_axes(&axes, false).unwrap().shape().rank(), shape.len() - axes.len());
            assert_close("sum", &values(x.sum_axes(&axes, false)), &sums, 1e-12);
            let negative: Vec<isize> = axes.iter().map(|a| a - shape.len() as isize).collect();
            assert_close("mean", &values(x.mean_axes(&negative, true)), &means, 1e-12);
        }
    });
}

#[test]
fn half_precision_sums_are_kept_wider() {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            // One by one in the dtype itself, this would stop growing at 2048 or 256.
            let x = Var::from(Tensor::ones([10_000], dtype, &device).unwrap());
            let sum = x.sum().unwrap().item().unwrap();
            assert!((sum - 10_000.0).abs() < 40.0, "{dtype}: {sum}");
            assert_eq!(x.mean().unwrap().item().unwrap(), 1.0);
            let column = x.reshape([10_000, 1]).unwrap().mean_axes(&[0], false).unwrap();
            assert_eq!(column.item().unwrap(), 1.0);
        }
    }
}

#[test]
fn the_largest_element_is_found_along_each_axis() {
    each_shape(|_, shape, numbers, x| {
        for axis in 0..shape.len() {
            let first_largest = |lane: &Vec<f64>| {
                (0..lane.len()).fold(0, |best, i| if lane[i] > lane[best] { i } else { best })
            };
            let reference: Vec<i64> =
                lanes(shape, axis, numbers).iter().map(|l| first_largest(l) as i64).collect();
            let out = x.argmax(axis as isize).unwrap();
            assert_eq!(out.tensor().to_vec::<i64>().unwrap(), reference);
            assert_eq!(out.shape().rank(), shape.len() - 1);
        }
        let equal = x.mul_scalar(0.0).unwrap().argmax(0).unwrap();
        assert!(equal.tensor().to_vec::<i64>().unwrap().iter().all(|&i| i == 0));
    });
}

#[test]
fn softmax_is_normalised_along_its_axis() {
    each_shape(|_, shape, numbers, x| {
        for axis in 0..shape.len() {
            let lanes = |values: &[f64]| lanes(shape, axis, values).concat();
            let reference: Vec<f64> = self::lanes(shape, axis, numbers)
                .into_iter()
                .flat_map(|lane| {
                    let sum: f64 = lane.iter().map(|x| x.exp()).sum();
                    lane.into_iter().map(move |x| x.exp() / sum)
                })
                .collect();
            let logarithms: Vec<f64> = reference.iter().map(|y| y.ln()).collect();
            let out = lanes(&values(x.softmax(axis as isize)));
            assert_close("softmax", &out, &reference, 1e-12);
            let out = lanes(&values(x.log_softmax(axis as isize)));
            assert_close("log_softmax", &out, &logarithms, 1e-12);
        }
    });
}

#[test]
fn layer_norm_follows_its_formula() {
    each_shape(|device, shape, numbers, x| {
        let features = shape[shape.len() - 1];
        let (weight, bias) = (data(5, features, (0.5, 2.0)), data(6, features, (-1.0, 1.0)));
        let (w, b) = (constant(device, &[features], &weight), constant(device, &[features], &bias));
        let normalised: Vec<f64> = numbers
            .chunks(features)
            .flat_map(|row| {
                let mean = row.iter().sum::<f64>() / features as f64;
                let square = |x: &f64| (x - mean).powi(2);
                let variance = row.iter().map(square).sum::<f64>() / features as f64;
                row.iter().map(move |x| (x - mean) / (variance + 0.1).sqrt())
            })
            .collect();
        assert_close("plain", &values(x.layer_norm(None, None, 0.1)), &normalised, 1e-12);
        let term = |(i, y): (usize, &f64)| y * weight[i % features] + bias[i % features];
        let scaled: Vec<f64> = normalised.iter().enumerate().map(term).collect();
        assert_close("affine", &values(x.layer_norm(Some(&w), Some(&b), 0.1)), &scaled, 1e-12);
    });
}

#[test]
fn pooling_takes_the_maximum_or_mean_of_each_window() {
    for device in devices() {
        for (shape, kernel, stride, padding) in [
            ([1, 1, 5], 2, 2, 0),
            ([2, 3, 7], 3, 1, 1),
            ([2, 3, 9], 4, 3, 2),
            ([1, 2, 6], 6, 1, 0),
            ([1, 2, 6], 1, 4, 0),
            ([31, 17, 101], 5, 2, 2),
        ] {
            let length = shape[2];
            let numbers = data(3, shape.iter().product(), (-2.0, -1.0));
            let x = constant(&device, &shape, &numbers);
            let out_length = (length + 2 * padding - kernel) / stride + 1;
            let windows: Vec<Vec<f64>> = numbers
                .chunks(length)
                .flat_map(|row| {
                    let inside = |at: usize| at.checked_sub(padding).and_then(|i| row.get(i));
                    let window = move |l: usize| {
                        (0..kernel).filter_map(|k| inside(l * stride + k).copied()).collect()
                    };
                    (0..out_length).map(window).collect::<Vec<Vec<f64>>>()
                })
                .collect();
            let largest: Vec<f64> =
                windows.iter().map(|w| w.iter().copied().fold(f64::MIN, f64::max)).collect();
            let means: Vec<f64> =
                windows.iter().map(|w| w.iter().sum::<f64>() / kernel as f64).collect();
            assert_eq!(values(x.max_pool1d(kernel, stride, padding)), largest);
            assert_close("avg", &values(x.avg_pool1d(kernel, stride, padding)), &means, 1e-12);
            let tape = Tape::new();
            let recorded = tape.variable(x.tensor().clone()).unwrap();
            assert_eq!(values(recorded.max_pool1d(kernel, stride, padding)), largest);
        }
    }
}

#[test]
fn losses_follow_their_formulas() {
    type Row = (&'static str, fn(&Var, &Var, Reduction) -> Result<Var>, fn(f64, f64) -> f64);
    let rows: &[Row] = &[
        ("mse", |x, t, r| x.mse_loss(t, r), |x, t| (x - t).powi(2)),
        ("l1", |x, t, r| x.l1_loss(t, r), |x, t| (x - t).abs()),
        (
            "huber",
            |x, t, r| x.huber_loss(t, 0.8, r),
            |x, t| match (x - t).abs() {
                d if d <= 0.8 => d * d / 2.0,
                d => 0.8 * (d - 0.4),
            },
        ),
        (
            "bce",
            |x, t, r| x.bce_with_logits(t, r),
            |x, t| {
                let sigmoid = 1.0 / (1.0 + (-x).exp());
                -t * sigmoid.ln() - (1.0 - t) * (1.0 - sigmoid).ln()
            },
        ),
    ];
    each_shape(|device, shape, numbers, x| {
        let targets = data(9, numbers.len(), (0.0, 1.0));
        let target = constant(device, shape, &targets);
        for (name, f, reference) in rows {
            let terms: Vec<f64> =
                numbers.iter().zip(&targets).map(|(&x, &t)| reference(x, t)).collect();
            let sum: f64 = terms.iter().sum();
            assert_close(name, &values(f(x, &target, Reduction::None)), &terms, 1e-12);
            assert_close(name, &values(f(x, &target, Reduction::Sum)), &[sum], 1e-12);
            let mean = sum / terms.len() as f64;
            assert_close(name, &values(f(x, &target, Reduction::Mean)), &[mean], 1e-12);
        }
    });
}

#[test]
fn cross_entropy_is_minus_the_label_s_log_softmax() {
    for device in devices() {
        for shape in [&[4usize, 3][..], &[1, 1], &[2, 3, 5], &[501, 37], &[7, 5, 61]] {
            let numbers = data(4, shape.iter().product(), (-3.0, 3.0));
            let x = constant(&device, shape, &numbers);
            let labels = labels(&x).unwrap();
            let names = labels.to_f64_vec().unwrap();
            let lanes = lanes(shape, 1, &numbers);
            for ignore_index in [None, Some(1), Some(-100)] {
                let terms: Vec<f64> = lanes
                    .iter()
                    .zip(&names)
                    .filter(|(_, label)| Some(**label as i64) != ignore_index)
                    .map(|(lane, &label)| {
                        lane.iter().map(|x| x.exp()).sum::<f64>().ln() - lane[label as usize]
                    })
                    .collect();
                let sum: f64 = terms.iter().sum();
                for (reduction, reference) in
                    [(Reduction::Sum, sum), (Reduction::Mean, sum / terms.len() as f64)]
                {
                    let options = CrossEntropyOptions { ignore_index, reduction };
                    let wide = labels.to_dtype(DType::I64).unwrap();
                    for labels in [&labels, &wide] {
                        let loss = x.cross_entropy(labels, options).unwrap().item().unwrap();
                        assert!((loss - reference).abs() <= 1e-11 * reference.max(1.0));
                    }
                }
            }
        }
    }
}

#[test]
fn dropout_keeps_the_mean_and_replays_its_mask() {
    for device in devices() {
        let n = 20_000;
        let ones = Tensor::ones([n], DType::F64, &device).unwrap();
        for p in [0.1, 0.5, 0.9] {
            let tape = Tape::for_step(3, 4);
            let x = tape.variable(ones.clone()).unwrap();
            let first = x.dropout(p).unwrap();
            let kept = first.tensor().to_vec::<f64>().unwrap();
            assert!(kept.iter().all(|&y| y == 0.0 || (y - 1.0 / (1.0 - p)).abs() < 1e-12));
            let share = kept.iter().filter(|&&y| y > 0.0).count() as f64 / n as f64;
            // Four standard deviations of a binomial share.
            assert!((share - (1.0 - p)).abs() < 4.0 * (p * (1.0 - p) / n as f64).sqrt());
            let second = x.dropout(p).unwrap().tensor().to_vec::<f64>().unwrap();
            assert_ne!(kept, second, "two operations of a step draw different masks");
            let again = Tape::for_step(3, 4).constant(ones.clone()).dropout(p).unwrap();
            assert_eq!(again.tensor().to_vec::<f64>().unwrap(), kept);
            let gradients = first.sum().unwrap().backward().unwrap();
            assert_eq!(gradients.get(&x).unwrap().to_vec::<f64>().unwrap(), kept);
        }
        assert_eq!(values(Var::from(&ones).dropout(1.0)), vec![0.0; n]);
    }
}
