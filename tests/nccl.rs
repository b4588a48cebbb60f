//! NCCL: one rank on a GPU, where every collective gives back what was brought; several ranks, processes of
//! their own, each on a GPU if there are enough, else all on one, which NCCL takes for several machines;
//! and ranks that die.
#![cfg(feature = "nccl")]

mod support;

use capgrad::{
    Communicator, Conv1d, CudaOptions, DType, DataParallel, Device, Error, KIB, Padding, Parameter,
    Purpose, ReduceOp, Rendezvous, RowSplitMatrix, SparseMatrix, Tape, Tensor, Var,
};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Kind, assert_close, tensor};

const ROLE: &str = "CAPGRAD_TEST_ROLE";

fn gpu() -> bool {
    support::kinds().any(|kind| kind == Kind::Cuda)
}

/// Whether each of so many ranks has a GPU of its own.
fn enough_gpus(ranks: usize) -> bool {
    (1..ranks).all(|gpu| Device::cuda(gpu).is_ok())
}

/// The device of a rank: on a GPU of its own where there are enough, else on the first.
fn device(rank: usize, ranks: usize) -> Device {
    let gpu = if enough_gpus(ranks) { rank } else { 0 };
    Device::new_cuda(gpu, CudaOptions { poison: true, ..Default::default() }).unwrap()
}

/// Whole numbers that every dtype holds, and sums of a few of them.
fn brought(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7 + rank * 13) % 32) as f64 - 8.0).collect()
}

fn collectives(own: &Communicator, device: &Device) {
    let (rank, ranks) = (own.rank(), own.world_size());
    let count = 1000 * ranks;
    let all = |by: ReduceOp| -> Vec<f64> {
        let column = |i: usize| (0..ranks).map(move |rank| brought(rank, count)[i]);
        (0..count)
            .map(|i| match by {
                ReduceOp::Sum => column(i).sum(),
                ReduceOp::Mean => column(i).sum::<f64>() / ranks as f64,
                ReduceOp::Max => column(i).fold(f64::MIN, f64::max),
                ReduceOp::Min => column(i).fold(f64::MAX, f64::min),
            })
            .collect()
    };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64] {
        let x = tensor(&brought(rank, count), [ranks, 1000], dtype, device);
        for by in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min] {
            if by == ReduceOp::Mean && !dtype.is_float() {
                continue;
            }
            let sum = own.all_reduce(&x, by).unwrap();
            let part = own.reduce_scatter(&x, by).unwrap();
            let (sum, part) = (sum.wait().unwrap(), part.wait().unwrap());
            let expected = all(by);
            let near = |got: &Tensor, expected: &[f64]| match dtype.is_float() {
                true => assert_close(format!("{by} in {dtype}"), got, expected),
                false => assert_eq!(support::values(got), expected),
            };
            near(&sum, &expected);
            near(&part, &expected[1000 * rank..][..1000]);
        }
        assert_eq!(support::values(&x), brought(rank, count), "what was brought is as it was");
        let gathered = own.all_gather(&x).unwrap().wait().unwrap();
        let expected: Vec<f64> = (0..ranks).flat_map(|rank| brought(rank, count)).collect();
        assert_eq!(support::values(&gathered), expected);
        for root in 0..ranks {
            let got = own.broadcast(&x, root).unwrap().wait().unwrap();
            assert_eq!(support::values(&got), brought(root, count));
        }
    }
    let numbers: Vec<f64> = (0..10_000).map(|i| (i * (rank + 1)) as f64).collect();
    let sums = own.sum(&numbers).unwrap();
    let factor = (ranks * (ranks + 1) / 2) as f64;
    assert!(sums.iter().enumerate().all(|(i, &sum)| sum == i as f64 * factor));
    own.barrier().unwrap();
    // Compute that follows uses what the collective leaves, without being told to wait; and what was
    // brought may be changed right after.
    for round in 0..50 {
        let x = Tensor::full([1 << 18], f64::from(round), DType::F32, device).unwrap();
        let pending = own.all_reduce(&x, ReduceOp::Sum).unwrap();
        let doubled = Var::from(&x).mul_scalar(2.0).unwrap();
        drop(x);
        let sum = Var::from(pending.wait().unwrap()).sum().unwrap().item().unwrap();
        assert_eq!(sum, f64::from(round) * ranks as f64 * f64::from(1 << 18));
        assert_eq!(doubled.tensor().to_vec::<f32>().unwrap()[77], 2.0 * round as f32);
    }
}

/// A few steps on shares of a batch, against the whole batch on this rank alone.
fn data_parallel(own: &Communicator, device: &Device) {
    let (rank, ranks) = (own.rank(), own.world_size());
    let build = |seed: u64| {
        device.set_seed(seed);
        let conv = |from, to| {
            let conv = Conv1d::builder(from, to, 3).padding(Padding::Same).dtype(DType::F64);
            conv.build(device).unwrap()
        };
        [conv(4, 8), conv(8, 2)]
    };
    let (alone, model) = (build(3), build(3 + rank as u64));
    let parameters = |model: &[Conv1d; 2]| -> Vec<Parameter> {
        model.iter().flat_map(Conv1d::parameters).collect()
    };
    let loss = |model: &[Conv1d; 2], tape: &Tape, from: usize, count: usize| {
        let data: Vec<f64> =
            (from * 64..(from + count) * 64).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
        let x = tape.constant(Tensor::from_vec(data, [count, 4, 16], device)?);
        let y = model[1].forward(&model[0].forward(&x)?.gelu()?)?;
        y.square()?.mean()
    };
    let parallel = DataParallel::new(own, parameters(&model)).unwrap().with_bucket_bytes(256);
    for step in 0..4 {
        let share = |rank: usize| 1 + (rank + step) % 3;
        let from = (0..rank).map(share).sum();
        let total = (0..ranks).map(share).sum();
        let tape = Tape::new();
        let step = parallel.step(share(rank), || loss(&model, &tape, from, share(rank))).unwrap();
        let whole = loss(&alone, &tape, 0, total).unwrap();
        assert!((step.loss - whole.item().unwrap()).abs() < 1e-12);
        let expected = whole.backward().unwrap();
        for (own, other) in parameters(&model).iter().zip(parameters(&alone)) {
            let expected = support::values(expected.parameter(&other).unwrap());
            assert_close("gradient", step.gradients.parameter(own).unwrap(), &expected);
        }
    }
    // An error on one rank is one on all, and they go on.
    let tape = Tape::new();
    let step = parallel.step(1, || match rank {
        0 => Err(Error::custom("data", "cut short")),
        _ => loss(&model, &tape, 0, 1),
    });
    assert!(step.unwrap_err().to_string().contains(if rank == 0 { "cut" } else { "rank 0" }));
    assert!(parallel.step(1, || loss(&model, &tape, 0, 1)).is_ok());
}

fn row_split(own: &Communicator, device: &Device) {
    let (rank, ranks, cols) = (own.rank(), own.world_size(), 300);
    // Uneven: rank r has 100·r rows, so rank 0 has none unless it is alone.
    let rows_of = |rank: usize| if ranks == 1 { 200 } else { 100 * rank };
    let rows: usize = (0..ranks).map(rows_of).sum();
    let first: usize = (0..rank).map(rows_of).sum();
    let entries = |rows: std::ops::Range<usize>| -> SparseMatrix {
        let (mut i, mut j, mut v) = (vec![], vec![], vec![]);
        for row in rows.clone() {
            for k in 0..row % 40 {
                i.push(row - rows.start);
                j.push((row * 7 + k * 11) % cols);
                v.push(((row + k) % 9) as f64 / 4.0 - 1.0);
            }
        }
        SparseMatrix::from_coo(rows.len(), cols, &i, &j, &v).unwrap()
    };
    let whole = entries(0..rows).to(device).unwrap();
    let part = entries(first..first + rows_of(rank)).to(device).unwrap();
    let split = RowSplitMatrix::new(part, own).unwrap();
    for batch in [1, 4] {
        let data: Vec<f64> = (0..batch * cols).map(|i| (i % 13) as f64 / 6.0 - 1.0).collect();
        let of = |apply: &dyn Fn(&Var) -> Var| {
            let tape = Tape::new();
            let x = tape.variable(tensor(&data, [batch, cols], DType::F64, device)).unwrap();
            let y = apply(&x);
            let out = support::values(y.tensor());
            let grads = y.square().unwrap().sum().unwrap().backward().unwrap();
            (out, support::values(grads.get(&x).unwrap()))
        };
        let expected = of(&|x| whole.apply(x).unwrap());
        let got = of(&|x| split.apply(x).unwrap());
        assert!(support::relative_error(&got.0, &expected.0) < 1e-12);
        assert!(support::relative_error(&got.1, &expected.1) < 1e-12);
    }
}

#[test]
fn one_rank_gets_back_what_it_brings() {
    if !gpu() {
        return;
    }
    let device = device(0, 1);
    let before = device.report().live[Purpose::Other];
    let it = Rendezvous::new(0, 1, "127.0.0.1:0");
    let own = Communicator::connect(&it, &device).unwrap();
    println!("{}: {own:?}", own.description());
    assert!(own.description().starts_with("NCCL 2."), "{}", own.description());
    // What NCCL took is on the meter while the communicator lives.
    let taken = device.report().live[Purpose::Other] - before;
    println!("NCCL takes {taken} bytes");
    collectives(&own, &device);
    data_parallel(&own, &device);
    row_split(&own, &device);
    let cpu = Tensor::ones([4], DType::F32, &Device::cpu()).unwrap();
    let error = own.all_reduce(&cpu, ReduceOp::Sum).unwrap_err().to_string();
    assert!(error.contains("cpu") && error.contains("cuda:0"), "{error}");
    drop(own);
    assert!(device.report().live[Purpose::Other] <= before + 64 * KIB);
}

/// One rank of several, started by the tests below.
#[test]
fn process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let it = Rendezvous::from_env().unwrap();
    let device = device(it.rank, it.world_size);
    let own = match Communicator::from_env(&device) {
        Ok(own) => own,
        Err(error) => return println!("\nSAID error {error}"),
    };
    let rank = own.rank();
    if role == "everything" {
        collectives(&own, &device);
        data_parallel(&own, &device);
        row_split(&own, &device);
        return println!("\nSAID right, {}", own.description());
    }
    let x = Tensor::ones([1 << 20], DType::F32, &device).unwrap();
    own.all_reduce(&x, ReduceOp::Sum).unwrap().wait().unwrap();
    let dies = rank + 1 == own.world_size();
    let start = Instant::now();
    if dies && role == "absent" {
        std::thread::sleep(Duration::from_secs(14));
        return println!("\nSAID absent");
    }
    for step in 0..200_000 {
        if dies && role == "dies" && step == 300 {
            std::process::abort();
        }
        let live = device.live_bytes();
        if let Err(error) = own.all_reduce(&x, ReduceOp::Sum).and_then(|pending| pending.wait()) {
            let ms = start.elapsed().as_millis();
            // The GPU goes on with other work, and nothing is held.
            assert_eq!(device.live_bytes(), live);
            let sum = Var::from(&x).sum().unwrap().item().unwrap();
            assert_eq!(sum, f64::from(1 << 20));
            assert!(own.barrier().is_err());
            return println!("\nSAID error after {ms} ms: {error}");
        }
    }
    println!("\nSAID nothing happened");
}

struct Started(Child);

impl Started {
    fn said(mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let status = self.0.wait().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("SAID "));
        line.map_or_else(|| format!("nothing ({status}): {text}"), str::to_owned)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the ranks said. With a GPU for each they are as a user's. NCCL refuses two ranks on one GPU of one
/// machine; the names that they are given there make machines of their processes.
fn processes(role: &str, world: usize, seconds: u32) -> Vec<String> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let apart = enough_gpus(world);
    if !apart {
        let _ = writeln!(std::io::stderr(), "{world} ranks share a GPU: skipped with one for each");
    }
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["process", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("CAPGRAD_TIMEOUT", seconds.to_string())
            .env_remove("TORCHELASTIC_RUN_ID")
            .stdout(Stdio::piped());
        if !apart {
            command
                .env("NCCL_HOSTID", format!("machine-{rank}"))
                .env("NCCL_SOCKET_IFNAME", "lo")
                .env("NCCL_IB_DISABLE", "1")
                .env("NCCL_P2P_DISABLE", "1")
                .env("NCCL_SHM_DISABLE", "1");
        }
        Started(command.spawn().unwrap())
    };
    let started: Vec<Started> = (0..world).map(start).collect();
    started.into_iter().map(Started::said).collect()
}

#[test]
fn processes_get_what_one_would() {
    if !gpu() {
        return;
    }
    for world in [2, 3] {
        for said in processes("everything", world, 60) {
            println!("{said}");
            assert!(said.starts_with("right, NCCL"), "{said}");
        }
    }
}

#[test]
fn a_rank_that_dies_or_stays_away_is_an_error_in_time() {
    if !gpu() {
        return;
    }
    let mut said = processes("dies", 3, 20);
    said.pop();
    for said in said {
        println!("{said}");
        assert!(said.contains("rank 2 has died"), "{said}");
    }
    let mut said = processes("absent", 2, 4);
    said.pop();
    for said in said {
        println!("{said}");
        assert!(said.contains("a peer did not come within 4s"), "{said}");
    }
}
