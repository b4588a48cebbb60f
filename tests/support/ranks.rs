//! Ranks that are threads of the test, and what each of them gave.

use capgrad::Communicator;
use std::time::Duration;

/// Runs `f` on so many ranks; their results in order.
pub fn run<T: Send>(ranks: usize, f: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    run_within(ranks, Duration::from_secs(60), f)
}

/// The same, with a time-out.
pub fn run_within<T: Send>(
    ranks: usize,
    timeout: Duration,
    f: impl Fn(Communicator) -> T + Sync,
) -> Vec<T> {
    let all = Communicator::in_process_with_timeout(ranks, timeout).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|own| scope.spawn(|| f(own))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
