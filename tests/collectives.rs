//! Collectives between ranks of one process, against the same arithmetic done by hand, and what becomes of
//! ranks that do not come, come with something else, or leave. (Ranks that are processes: `nccl.rs`.)

mod support;

use capgrad::{Communicator, DType, Device, Error, ReduceOp, Rendezvous, Tensor};
use std::time::{Duration, Instant};
use support::ranks::{run, run_within};
use support::{tensor, tolerance};

/// What rank `rank` brings: halves hold these numbers, and sums of five of them, exactly.
fn brought(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + rank * 13) % 32) as f64 - 8.0).collect()
}

fn reduced(by: ReduceOp, ranks: usize, count: usize) -> Vec<f64> {
    let column = |i: usize| (0..ranks).map(move |rank| brought(rank, count)[i]);
    (0..count)
        .map(|i| match by {
            ReduceOp::Sum => column(i).sum(),
            ReduceOp::Mean => column(i).sum::<f64>() / ranks as f64,
            ReduceOp::Max => column(i).fold(f64::MIN, f64::max),
            ReduceOp::Min => column(i).fold(f64::MAX, f64::min),
        })
        .collect()
}

fn close(got: &Tensor, expected: &[f64], dtype: DType) {
    let got = support::values(got);
    assert_eq!(got.len(), expected.len());
    let limit = if dtype.is_float() { tolerance(dtype) } else { 0.0 };
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= limit * expected.abs(), "{got} for {expected}, {dtype}");
    }
}

#[test]
fn every_collective_in_every_dtype() {
    let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64];
    for kind in support::kinds() {
        for ranks in 1..=5 {
            let count = 6 * ranks;
            run(ranks, |own| {
                let device = kind.poisoned();
                assert_eq!(own.world_size(), ranks);
                for dtype in dtypes {
                    let x = tensor(&brought(own.rank(), count), [ranks, 6], dtype, &device);
                    for by in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min] {
                        let expected = reduced(by, ranks, count);
                        if by == ReduceOp::Mean && !dtype.is_float() {
                            let error = own.all_reduce(&x, by).unwrap_err();
                            assert!(matches!(error, Error::DType { .. }));
                            continue;
                        }
                        let all = own.all_reduce(&x, by).unwrap();
                        let part = own.reduce_scatter(&x, by).unwrap();
                        let (all, part) = (all.wait().unwrap(), part.wait().unwrap());
                        close(&all, &expected, dtype);
                        assert_eq!((all.dims(), part.dims()), (&[ranks, 6][..], &[1, 6][..]));
                        close(&part, &expected[6 * own.rank()..][..6], dtype);
                    }
                    // What was brought is as it was.
                    close(&x, &brought(own.rank(), count), dtype);
                    let gathered = own.all_gather(&x).unwrap().wait().unwrap();
                    let all: Vec<f64> = (0..ranks).flat_map(|r| brought(r, count)).collect();
                    assert_eq!(gathered.dims(), [ranks * ranks, 6]);
                    close(&gathered, &all, dtype);
                    for root in 0..ranks {
                        let got = own.broadcast(&x, root).unwrap().wait().unwrap();
                        close(&got, &brought(root, count), dtype);
                    }
                }
                let sums = own.sum(&[own.rank() as f64, 1.0]).unwrap();
                assert_eq!(sums, [(0..ranks).sum::<usize>() as f64, ranks as f64]);
                own.barrier().unwrap();
            });
        }
    }
}

#[test]
fn nothing_and_single_numbers_are_tensors_too() {
    run(3, |own| {
        let device = Device::cpu();
        let none = Tensor::zeros([0, 4], DType::F32, &device).unwrap();
        let one = tensor(&[own.rank() as f64], [], DType::F64, &device);
        assert_eq!(own.all_reduce(&none, ReduceOp::Sum).unwrap().wait().unwrap().dims(), [0, 4]);
        assert_eq!(own.all_gather(&none).unwrap().wait().unwrap().dims(), [0, 4]);
        let all = own.all_gather(&one).unwrap().wait().unwrap();
        assert_eq!(all.to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0]);
        let error = own.reduce_scatter(&one, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{error}");
        assert!(own.broadcast(&one, 3).unwrap_err().to_string().contains("root = 3"));
    });
    assert!(matches!(Communicator::in_process(0), Err(Error::Argument { .. })));
}

/// Several under way at once, waited for in another order than they were started in.
#[test]
fn collectives_may_overlap() {
    run(4, |own| {
        let device = Device::cpu();
        let x = |i: usize| tensor(&brought(own.rank() + i, 5), [5], DType::F64, &device);
        let started: Vec<_> =
            (0..6).map(|i| own.all_reduce(&x(i), ReduceOp::Sum).unwrap()).collect();
        for (i, pending) in started.into_iter().enumerate().rev() {
            let expected: Vec<f64> =
                (0..5).map(|at| (0..4).map(|rank| brought(rank + i, 5)[at]).sum()).collect();
            close(&pending.wait().unwrap(), &expected, DType::F64);
        }
        // One that nobody waits for is over all the same.
        drop(own.all_reduce(&x(0), ReduceOp::Sum).unwrap());
    });
}

#[test]
fn a_rank_that_does_not_come_is_an_error_in_time() {
    let start = Instant::now();
    let timeout = Duration::from_millis(300);
    let errors = run_within(3, timeout, |own| {
        let x = Tensor::ones([4], DType::F32, &Device::cpu()).unwrap();
        if own.rank() == 1 {
            // Its handle stays alive longer than the others wait.
            std::thread::sleep(4 * timeout);
            return own
                .all_reduce(&x, ReduceOp::Sum)
                .and_then(|p| p.wait())
                .unwrap_err()
                .to_string();
        }
        own.all_reduce(&x, ReduceOp::Sum).unwrap().wait().unwrap_err().to_string()
    });
    for error in &errors {
        assert!(error.contains("rank 1 did not come"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_rank_that_is_gone_is_an_error_at_once() {
    let start = Instant::now();
    let errors = run(3, |own| {
        let x = Tensor::ones([4], DType::F32, &Device::cpu()).unwrap();
        if own.rank() == 2 {
            return None;
        }
        let pending = own.all_reduce(&x, ReduceOp::Sum).unwrap();
        let first = pending.wait().unwrap_err().to_string();
        assert!(own.barrier().is_err(), "and no later call goes on");
        Some(first)
    });
    for error in errors.into_iter().flatten() {
        assert!(error.contains("rank 2 is gone") && error.contains("all_reduce"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(30), "nobody waited for the time-out");
}

#[test]
fn ranks_that_ask_for_different_things_are_told_so() {
    let errors = run(2, |own| {
        let length = 4 + own.rank();
        let x = Tensor::ones([length], DType::F32, &Device::cpu()).unwrap();
        own.all_reduce(&x, ReduceOp::Sum).unwrap().wait().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("16 bytes") && error.contains("20 bytes"), "{error}");
    }
}

#[test]
fn a_cpu_cannot_be_joined_by_nccl() {
    let it = Rendezvous::new(0, 1, "127.0.0.1:1");
    let error = Communicator::connect(&it, &Device::cpu()).unwrap_err().to_string();
    assert!(error.contains("cpu") && error.contains("CUDA"), "{error}");
}
