//! Every candidate of every pass against a plain f64 convolution.

use super::*;
use crate::device::cpu::gemm::tests::{CAPS, Lcg, distance, pool, tolerance, with_workspace};
use crate::dtype::Element;
use half::{bf16, f16};
use rayon::ThreadPool;

/// `y`, `dx` and `dw` by the definition: each term of `y` is met once, and added where it belongs.
fn reference<T: Element>(
    pass: ConvPass,
    g: &ConvGeometry,
    a: &[T],
    b: &[T],
    bias: &[T],
) -> Vec<f64> {
    let (ci, co) = (g.in_channels / g.groups, g.out_channels / g.groups);
    let mut out = vec![
        0.0;
        match pass {
            ConvPass::Forward => g.batch * g.out_channels * g.out_length,
            ConvPass::InputGradient => g.batch * g.in_channels * g.in_length,
            ConvPass::WeightGradient => g.out_channels * ci * g.kernel,
        }
    ];
    for n in 0..g.batch {
        for (o, bias) in bias.iter().enumerate() {
            for l in 0..g.out_length {
                let y = (n * g.out_channels + o) * g.out_length + l;
                if pass == ConvPass::Forward {
                    out[y] += bias.to_f64();
                }
                for c in 0..ci {
                    for k in 0..g.kernel {
                        let at = (l * g.stride + k * g.dilation).wrapping_sub(g.pad_left);
                        if at >= g.in_length {
                            continue;
                        }
                        let x = (n * g.in_channels + o / co * ci + c) * g.in_length + at;
                        let w = (o * ci + c) * g.kernel + k;
                        let (to, a, b) = match pass {
                            ConvPass::Forward => (y, a[x], b[w]),
                            ConvPass::InputGradient => (x, a[y], b[w]),
                            ConvPass::WeightGradient => (w, a[x], b[y]),
                        };
                        out[to] += a.to_f64() * b.to_f64();
                    }
                }
            }
        }
    }
    out
}

/// Sizes without the lengths, from which `out_length` follows.
#[allow(clippy::too_many_arguments)]
fn geometry(
    batch: usize,
    channels: [usize; 2],
    in_length: usize,
    kernel: usize,
    [stride, dilation]: [usize; 2],
    groups: usize,
    [pad_left, pad_right]: [usize; 2],
) -> Option<ConvGeometry> {
    let reach = dilation * (kernel - 1) + 1;
    let padded = in_length + pad_left + pad_right;
    let out_length = padded.checked_sub(reach)? / stride + 1;
    let [in_channels, out_channels] = channels;
    Some(ConvGeometry {
        batch,
        in_channels,
        out_channels,
        in_length,
        out_length,
        kernel,
        stride,
        dilation,
        groups,
        pad_left,
        pad_right,
    })
}

fn check<T: Float>(g: &ConvGeometry, caps: &[u64], pools: &[ThreadPool; 2]) {
    let mut random = Lcg((g.in_length * 131 + g.kernel * 17 + g.batch) as u64);
    let x: Vec<T> = random.values(g.batch * g.in_channels * g.in_length);
    let w: Vec<T> = random.values(g.out_channels * g.in_channels / g.groups * g.kernel);
    let dy: Vec<T> = random.values(g.batch * g.out_channels * g.out_length);
    let values: Vec<T> = random.values(g.out_channels);
    for pass in ConvPass::ALL {
        let (a, b, bias) = match pass {
            ConvPass::Forward => (&x, &w, Some(&values[..])),
            ConvPass::InputGradient => (&dy, &w, None),
            ConvPass::WeightGradient => (&x, &dy, None),
        };
        let reference = reference(pass, g, a, b, &values);
        for &cap in caps {
            let all = candidates(pass, g, T::DTYPE, 2, cap);
            assert!(all.iter().any(|c| c.workspace == 0));
            for candidate in all {
                let told = (pass.name(), &candidate, g);
                assert!(candidate.seconds.is_finite() && candidate.seconds > 0.0, "{told:?}");
                let run = |isa: Isa, pool: &ThreadPool, threads: usize| {
                    let mut out = vec![T::from_f64(f64::NAN); reference.len()];
                    let call = Call { pass, geometry: g, a, b, bias, isa, threads };
                    with_workspace(candidate.workspace, |workspace| {
                        pool.install(|| run_call(&call, &candidate, &mut out, workspace));
                    });
                    out
                };
                let one = run(Isa::detect(), &pools[0], 1);
                let two = run(Isa::detect(), &pools[1], 2);
                let bytes = bytemuck::cast_slice::<T, u8>;
                assert!(bytes(&one) == bytes(&two), "{told:?}: threads change the result");
                let plain = run(Isa::portable(), &pools[1], 2);
                for out in [&one, &plain] {
                    let error = distance(out, &reference);
                    assert!(error <= tolerance(T::DTYPE), "{told:?}: {error}");
                }
            }
        }
    }
}

fn check_all(g: &ConvGeometry, caps: &[u64], pools: &[ThreadPool; 2]) {
    check::<f32>(g, caps, pools);
    check::<f64>(g, caps, pools);
    check::<f16>(g, caps, pools);
    check::<bf16>(g, caps, pools);
}

#[test]
fn every_candidate_agrees_with_f64() {
    let pools = [pool(1), pool(2)];
    let grid = [
        geometry(20, [60, 70], 11, 1, [1, 1], 1, [0, 0]),
        geometry(3, [40, 50], 64, 3, [1, 1], 1, [1, 1]),
        geometry(2, [30, 20], 50, 5, [2, 1], 1, [2, 1]),
        geometry(2, [12, 18], 40, 4, [3, 2], 3, [0, 7]),
        geometry(2, [8, 8], 33, 7, [1, 1], 8, [3, 3]),
        geometry(2, [4, 12], 600, 31, [1, 9], 4, [200, 100]),
        geometry(1, [2, 2], 9000, 25, [2, 1], 2, [12, 12]),
        geometry(0, [4, 6], 10, 3, [1, 1], 2, [1, 1]),
        geometry(2, [1, 1], 1, 1, [1, 1], 1, [0, 0]),
        geometry(2, [3, 2], 1, 3, [1, 1], 1, [5, 4]),
        geometry(2, [5, 5], 20, 1, [4, 1], 1, [0, 0]),
        geometry(2, [5, 5], 20, 2, [6, 3], 5, [1, 0]),
        geometry(3, [1, 64], 3000, 25, [1, 1], 1, [12, 12]),
        geometry(1, [300, 10], 30, 5, [1, 1], 1, [2, 2]),
        geometry(1, [2, 3], 90, 80, [1, 1], 1, [0, 0]),
    ];
    for g in grid {
        check_all(&g.expect("a valid geometry"), &CAPS, &pools);
    }
}

#[test]
fn random_geometries_agree_with_f64() {
    let pools = [pool(1), pool(2)];
    let mut random = Lcg(11);
    let mut done = 0;
    while done < 200 {
        let groups = 1 + random.below(4);
        let channels = [groups * (1 + random.below(5)), groups * (1 + random.below(9))];
        let steps = [1 + random.below(4), 1 + random.below(4)];
        let padding = [random.below(9), random.below(9)];
        let (length, kernel) = (1 + random.below(40), 1 + random.below(7));
        let g = geometry(random.below(4), channels, length, kernel, steps, groups, padding);
        if let Some(g) = g {
            check_all(&g, &[CAPS[done % CAPS.len()]], &pools);
            done += 1;
        }
    }
}

#[test]
fn depthwise_edges_agree_with_f64() {
    let pools = [pool(1), pool(2)];
    let mut done = 0;
    for length in [1, 2, 7, 8, 9, 11, 15, 16, 17, 64, 65] {
        for kernel in (1..=9).chain([31]) {
            // Around the row, uneven and wider than the kernel, strided, dilated, and both.
            let grid = [
                ([1, 1], [kernel / 2, kernel / 2]),
                ([1, 1], [kernel + 3, kernel + 9]),
                ([2, 1], [kernel + 1, kernel]),
                ([1, 2], [kernel, kernel]),
                ([3, 2], [2 * kernel, kernel]),
            ];
            for (steps, padding) in grid {
                // More rows than are copied at a time, and more outputs than inputs.
                let multiplier = 1 + done % 2;
                let channels = [9, 9 * multiplier];
                if let Some(g) = geometry(3, channels, length, kernel, steps, 9, padding) {
                    check_all(&g, &[0], &pools);
                    done += 1;
                }
            }
        }
    }
    assert!(done > 500);
}
