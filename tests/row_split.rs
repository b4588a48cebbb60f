//! A matrix whose rows are divided among ranks, against the whole one: products, gradients, memory, any
//! division, and a rank that fails.

mod support;

use capgrad::{
    DType, Device, Error, Fault, KIB, MIB, RowSplitMatrix, SparseMatrix, Tape, Tensor,
    balanced_rows,
};
use std::ops::Range;
use support::ranks::run;
use support::{assert_close, tensor};

/// `(row, column, value)` of a matrix with rows of 0 to 6 entries.
fn entries(rows: usize, cols: usize) -> Vec<(usize, usize, f64)> {
    let mut list = Vec::new();
    for row in 0..rows {
        for k in 0..(row * 5 + 3) % 7 {
            let column = (row * 11 + k * k * 3 + k) % cols;
            list.push((row, column, ((row * 3 + k * 5) % 16) as f64 / 4.0 - 1.5));
        }
    }
    list
}

fn matrix(
    list: &[(usize, usize, f64)],
    rows: Range<usize>,
    cols: usize,
    dtype: DType,
) -> SparseMatrix {
    let own: Vec<_> = list.iter().filter(|entry| rows.contains(&entry.0)).collect();
    let i: Vec<usize> = own.iter().map(|entry| entry.0 - rows.start).collect();
    let j: Vec<usize> = own.iter().map(|entry| entry.1).collect();
    let v: Vec<f64> = own.iter().map(|entry| entry.2).collect();
    SparseMatrix::from_coo(rows.len(), cols, &i, &j, &v).unwrap().to_dtype(dtype).unwrap()
}

/// Divisions of so many rows: by entries, one rank with all, uneven ones that begin anywhere.
fn divisions(list: &[(usize, usize, f64)], rows: usize, ranks: usize) -> Vec<Vec<Range<usize>>> {
    let mut counts = vec![0; rows];
    list.iter().for_each(|entry| counts[entry.0] += 1);
    let last = (0..ranks).map(|rank| if rank + 1 == ranks { 0..rows } else { 0..0 }).collect();
    let cut = |rank: usize| (rows * rank * rank / (ranks * ranks)).min(rows);
    let uneven = (0..ranks).map(|rank| cut(rank)..cut(rank + 1)).collect();
    vec![balanced_rows(&counts, ranks), last, uneven]
}

#[test]
fn products_and_gradients_are_those_of_the_whole() {
    for kind in support::kinds() {
        for (rows, cols, dtype) in
            [(61, 40, DType::F64), (61, 40, DType::F32), (32, 17, DType::F16), (3, 50, DType::F32)]
        {
            let list = entries(rows, cols);
            let host = matrix(&list, 0..rows, cols, DType::F64);
            for ranks in [1, 2, 3, 5] {
                for division in divisions(&list, rows, ranks) {
                    for (batch, cap) in [(1, MIB), (5, MIB), (5, 0), (9, KIB), (0, MIB)] {
                        let check = |columns: bool| {
                            let shape =
                                |length| if columns { [length, batch] } else { [batch, length] };
                            let data: Vec<f64> =
                                (0..batch * cols).map(|i| (i * 7 % 8) as f64 / 4.0).collect();
                            let weigh: Vec<f64> =
                                (0..batch * rows).map(|i| (i * 3 % 8) as f64 / 8.0 - 0.5).collect();
                            // The reference: one CPU, f64, the whole matrix.
                            let cpu = Device::cpu();
                            let tape = Tape::new();
                            let x = tape
                                .variable(tensor(&data, shape(cols), DType::F64, &cpu))
                                .unwrap();
                            let y = if columns { host.matmul(&x) } else { host.apply(&x) }.unwrap();
                            let expected_y = support::values(y.tensor());
                            let dy = tensor(&weigh, shape(rows), DType::F64, &cpu);
                            let grads = y.backward_with(dy).unwrap();
                            let expected_dx = support::values(grads.get(&x).unwrap());
                            run(ranks, |own| {
                                let device = kind.poisoned();
                                device.set_workspace_cap(cap);
                                let part = matrix(&list, division[own.rank()].clone(), cols, dtype);
                                let a =
                                    RowSplitMatrix::new(part.to(&device).unwrap(), &own).unwrap();
                                assert_eq!((a.rows(), a.cols(), a.nnz()), (rows, cols, host.nnz()));
                                assert_eq!(a.own_rows(), division[own.rank()]);
                                let tape = Tape::new();
                                let x = tape
                                    .variable(tensor(&data, shape(cols), dtype, &device))
                                    .unwrap();
                                let y = if columns { a.matmul(&x) } else { a.apply(&x) }.unwrap();
                                assert_close("y", y.tensor(), &expected_y);
                                let dy = tensor(&weigh, shape(rows), dtype, &device);
                                let grads = y.backward_with(dy).unwrap();
                                assert_close("dx", grads.get(&x).unwrap(), &expected_dx);
                                let peak = support::workspace_peak(&device);
                                assert!(peak <= cap, "{peak} bytes of workspace under {cap}");
                            });
                        };
                        check(true);
                        check(false);
                    }
                }
            }
        }
    }
}

/// Through a loss that every rank computes alike, and a layer before the matrix: the gradient that one
/// process gets.
#[test]
fn a_chain_through_the_matrix_is_that_of_one_process() {
    let (rows, cols) = (40, 24);
    let list = entries(rows, cols);
    let data: Vec<f64> = (0..3 * cols).map(|i| (i % 9) as f64 / 9.0 - 0.3).collect();
    let expected = {
        let a = matrix(&list, 0..rows, cols, DType::F64);
        let tape = Tape::new();
        let x = tape.variable(tensor(&data, [3, cols], DType::F64, &Device::cpu())).unwrap();
        let loss = a.apply(&x.tanh().unwrap()).unwrap().square().unwrap().mean().unwrap();
        let value = loss.item().unwrap();
        (value, support::values(loss.backward().unwrap().get(&x).unwrap()))
    };
    run(4, |own| {
        let division = &divisions(&list, rows, 4)[0];
        let part = matrix(&list, division[own.rank()].clone(), cols, DType::F64);
        let a = RowSplitMatrix::new(part, &own).unwrap();
        let tape = Tape::new();
        let x = tape.variable(tensor(&data, [3, cols], DType::F64, &Device::cpu())).unwrap();
        let loss = a.apply(&x.tanh().unwrap()).unwrap().square().unwrap().mean().unwrap();
        assert!((loss.item().unwrap() - expected.0).abs() <= 1e-12);
        assert_close("dx", loss.backward().unwrap().get(&x).unwrap(), &expected.1);
    });
}

#[test]
fn a_rank_that_fails_is_an_error_on_all_and_they_can_go_on() {
    let (rows, cols) = (40, 24);
    let list = entries(rows, cols);
    run(3, |own| {
        let device = Device::new_cpu(Default::default()).unwrap();
        let division = &divisions(&list, rows, 3)[2];
        let part = matrix(&list, division[own.rank()].clone(), cols, DType::F32);
        let a = RowSplitMatrix::new(part.to(&device).unwrap(), &own).unwrap();
        let x = Tensor::ones([4, cols], DType::F32, &device).unwrap();
        let dy = Tensor::ones([4, rows], DType::F32, &device).unwrap();
        // The n-th piece of memory of the forward or of the backward pass fails on one rank.
        let step = |n: u64, backward: bool| {
            let tape = Tape::new();
            let x = tape.variable(x.clone())?;
            let fault = (own.rank() == 2).then_some(Fault::Allocation(n));
            device.inject_fault(fault.filter(|_| !backward));
            let y = a.apply(&x)?;
            device.inject_fault(fault.filter(|_| backward));
            let grads = y.backward_with(dy.clone())?;
            device.inject_fault(None);
            grads.get(&x).unwrap().to_vec::<f32>()
        };
        let expected = step(u64::MAX, false).unwrap();
        let live = device.live_bytes();
        for backward in [false, true] {
            let mut failures = 0;
            loop {
                match step(failures + 1, backward) {
                    Ok(dx) => {
                        assert_eq!(dx, expected);
                        break;
                    }
                    Err(error) => match own.rank() {
                        2 => assert!(matches!(error, Error::Injected { .. }), "{error}"),
                        _ => assert!(error.to_string().contains("rank 2 has failed"), "{error}"),
                    },
                }
                assert_eq!(device.live_bytes(), live);
                failures += 1;
            }
            assert!(failures >= 1);
        }
    });
}

#[test]
fn rows_that_do_not_go_together_are_refused() {
    let errors = run(2, |own| {
        let cols = 4 + own.rank();
        let part = SparseMatrix::from_coo(1, cols, &[0], &[0], &[1.0f32]).unwrap();
        RowSplitMatrix::new(part, &own).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("5 columns")), "{errors:?}");
}

#[test]
fn rows_are_divided_by_their_entries() {
    let even = vec![3; 800];
    for ranks in 1..=7 {
        let ranges = balanced_rows(&even, ranks);
        assert_eq!(ranges.len(), ranks);
        assert_eq!((ranges[0].start, ranges[ranks - 1].end), (0, 800));
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
            assert_eq!(pair[1].start % 8, 0);
        }
        let most = ranges.iter().map(|range| range.len()).max().unwrap();
        assert!(most <= 800 / ranks + 8, "{ranges:?}");
    }
    // One row with nearly everything: the others have what is left.
    let mut skewed = vec![1; 64];
    skewed[20] = 10_000;
    assert_eq!(balanced_rows(&skewed, 2), [0..24, 24..64]);
    assert_eq!(balanced_rows(&[], 3), [0..0, 0..0, 0..0]);
    assert_eq!(balanced_rows(&[0; 9], 2).last().unwrap().end, 9);
    assert!(balanced_rows(&[1, 2], 0).is_empty());
}
