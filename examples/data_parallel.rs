//! One model on several GPUs, a process for each: every rank computes the gradients of its share of the
//! batch, NCCL averages them while the backward pass goes on.
//!
//! ```text
//! torchrun --no-python --nproc-per-node 8 target/release/examples/data_parallel
//! mpirun -n 8 target/release/examples/data_parallel
//! cargo run --example data_parallel -- --threads 4      # ranks as threads, on any machine
//! ```

mod workloads;

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Communicator, DataParallel, Device, Reduction, Rendezvous, Tape, Tensor, Var,
    format_bytes, parse_bytes,
};
use clap::Parser;
use std::time::Instant;
use workloads::{Autoencoder, Grid};

#[derive(Parser, Clone)]
#[command(about = "An autoencoder trained by several ranks on shares of each batch")]
struct Arguments {
    /// Ranks that are threads of this process, instead of what a launcher says.
    #[arg(long)]
    threads: Option<usize>,
    /// Each rank's device; cuda:N with N the rank on its machine if left out, and a CPU device for threads.
    #[arg(long)]
    device: Option<Device>,
    /// Positions x channels of one field.
    #[arg(long, default_value = "256x32")]
    grid: Grid,
    /// Fields of a whole batch, all ranks together.
    #[arg(long, default_value_t = 30)]
    batch: usize,
    /// Training steps.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Workspace cap, such as 0 or 64MiB.
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    cap: u64,
    /// Bytes of gradients that are averaged together.
    #[arg(long, default_value = "25MiB", value_parser = parse_bytes)]
    bucket: u64,
}

/// Field `number` of an endless set: a few waves.
fn field(number: usize, grid: Grid, data: &mut Vec<f32>) {
    let phase = number as f32 * 0.37;
    for channel in 0..grid.channels {
        for position in 0..grid.positions {
            let (c, p) = (channel as f32 / 8.0, position as f32 / 10.0);
            data.push((p + c + phase).sin() * (0.3 * p + 2.0 * phase).cos());
        }
    }
}

fn train(own: &Communicator, device: &Device, arguments: &Arguments) -> capgrad::Result<f64> {
    device.set_workspace_cap(arguments.cap);
    let grid = arguments.grid;
    let model = Autoencoder::new(grid.channels, device)?;
    let bucket = usize::try_from(arguments.bucket).unwrap_or(usize::MAX);
    let parallel = DataParallel::new(own, model.parameters())?.with_bucket_bytes(bucket);
    let mut adam = Adam::new(model.parameters(), AdamOptions { rate: 2e-3, ..Default::default() })?;
    let (rank, ranks) = (own.rank(), own.world_size());
    // The last ranks have one field less where the batch cannot be divided.
    let share = |rank: usize| arguments.batch * (rank + 1) / ranks - arguments.batch * rank / ranks;
    if rank == 0 {
        println!("{ranks} ranks, {}; rank 0 on {}", own.description(), device.description());
        println!("{:>4} {:>12} {:>9}", "step", "loss", "ms");
    }
    let mut last = f64::NAN;
    for step in 0..arguments.steps {
        let start = Instant::now();
        let tape = Tape::for_step(0, step as u64);
        let done = parallel.step(share(rank), || {
            let first = step * arguments.batch + arguments.batch * rank / ranks;
            let mut data = Vec::new();
            (first..first + share(rank)).for_each(|number| field(number, grid, &mut data));
            let shape = [share(rank), grid.channels, grid.positions];
            let x = Tensor::from_vec(data, shape, device)?;
            let y = model.forward(&tape.constant(x.clone()))?;
            y.mse_loss(&Var::from(x), Reduction::Mean)
        })?;
        adam.step(&done.gradients)?;
        last = done.loss;
        if rank == 0 {
            let ms = start.elapsed().as_secs_f64() * 1e3;
            println!("{:>4} {:>12.8} {ms:>9.2}", step + 1, done.loss);
        }
    }
    if rank == 0 {
        println!("peak on rank 0: {}", format_bytes(device.report().peak));
    }
    Ok(last)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    if arguments.grid.positions % 4 != 0 {
        return Err("the positions must be a multiple of 4".into());
    }
    if let Some(threads) = arguments.threads {
        let ranks = Communicator::in_process(threads)?;
        return std::thread::scope(|scope| {
            let ranks = ranks.iter().map(|own| {
                let arguments = arguments.clone();
                scope.spawn(move || {
                    let own_cpu = || Device::new_cpu(Default::default());
                    let device = arguments.device.clone().map_or_else(own_cpu, Ok)?;
                    train(own, &device, &arguments)
                })
            });
            let ranks: Vec<_> = ranks.collect();
            for rank in ranks {
                rank.join().map_err(|_| "a rank has panicked")??;
            }
            Ok(())
        });
    }
    let rendezvous = Rendezvous::from_env()?;
    let device = match arguments.device.clone() {
        Some(device) => device,
        None => Device::cuda(rendezvous.local_rank)?,
    };
    let own = Communicator::connect(&rendezvous, &device)?;
    train(&own, &device, &arguments)?;
    Ok(())
}
