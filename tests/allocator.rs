//! A counting global allocator agrees with the meter: over a training step, what the process takes
//! from the system at its peak is what the meter says, within 1 MiB a thread.

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Conv1d, CpuOptions, DType, Device, MIB, Padding, Result, SparseMatrix, Tape, Tensor,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

fn taken(bytes: usize) {
    let live = LIVE.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call goes on to the system's allocator unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new are live together while it is copied.
        taken(size);
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The tests measure the whole process, so only one runs at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Few, so that what each may keep for itself is small beside the peaks, on any machine.
const THREADS: usize = 2;

fn slack() -> u64 {
    THREADS as u64 * MIB
}

/// Runs `step` until all is warm, then once more between the two counters.
fn agree(what: &str, device: &Device, mut step: impl FnMut() -> Result<()>) {
    for _ in 0..3 {
        step().unwrap();
    }
    device.reset_peak();
    let (metered_before, real_before) = (device.live_bytes(), LIVE.load(Relaxed));
    PEAK.store(real_before, Relaxed);
    step().unwrap();
    let metered = device.report().peak - metered_before;
    let real = PEAK.load(Relaxed) - real_before;
    assert!(metered > 4 * slack(), "{what}: a peak of {metered} shows nothing");
    let difference = metered.abs_diff(real);
    assert!(difference <= slack(), "{what}: metered {metered}, really {real}");
    assert_eq!(device.live_bytes(), metered_before, "{what}");
    let kept = LIVE.load(Relaxed).abs_diff(real_before);
    assert!(kept <= slack(), "{what}: {kept} bytes are still held after the step");
}

fn device() -> Device {
    Device::new_cpu(CpuOptions { threads: Some(THREADS), ..Default::default() }).unwrap()
}

#[test]
fn a_step_of_a_convolutional_net_takes_what_the_meter_says() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for dtype in DType::FLOATS {
        for cap in [0, 2 * MIB, 64 * MIB] {
            let device = device();
            device.set_workspace_cap(cap);
            let layer = |from, to, kernel, groups| {
                Conv1d::builder(from, to, kernel)
                    .groups(groups)
                    .padding(Padding::Same)
                    .dtype(dtype)
                    .build(&device)
                    .unwrap()
            };
            let layers = [
                layer(32, 64, 5, 1),
                layer(64, 64, 3, 64),
                layer(64, 96, 1, 1),
                layer(96, 32, 3, 4),
            ];
            let parameters = layers.iter().flat_map(Conv1d::parameters);
            let mut adam = Adam::new(parameters, AdamOptions::default()).unwrap();
            let x = Tensor::rand([24, 32, 600], dtype, &device).unwrap();
            agree(&format!("{dtype} under {cap}"), &device, || {
                let tape = Tape::new();
                let mut y = tape.constant(x.clone());
                for layer in &layers {
                    y = layer.forward(&y)?.relu()?;
                }
                adam.step(&y.square()?.mean()?.backward()?)
            });
        }
    }
}

#[test]
fn a_step_with_a_sparse_product_takes_what_the_meter_says() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let n = 40_000usize;
    let per_row = 12usize;
    let rows: Vec<usize> = (0..n * per_row).map(|e| e / per_row).collect();
    let cols: Vec<usize> = (0..n * per_row).map(|e| (e * 7919 + e / per_row) % n).collect();
    let values: Vec<f32> = (0..n * per_row).map(|e| (e % 13) as f32 / 13.0).collect();
    for cap in [0, 3 * MIB, 64 * MIB] {
        let device = device();
        device.set_workspace_cap(cap);
        let a = SparseMatrix::from_coo(n, n, &rows, &cols, &values).unwrap();
        let a = a.to(&device).unwrap();
        let x = Tensor::rand([32, n], DType::F32, &device).unwrap();
        agree(&format!("sparse under {cap}"), &device, || {
            let tape = Tape::new();
            let x = tape.variable(x.clone())?;
            let values = tape.variable(a.values().unwrap())?;
            let y = a.apply(&x)?.add(&a.apply_values(&values, &x)?)?;
            let gradients = y.square()?.mean()?.backward()?;
            assert_eq!(gradients.len(), 2);
            Ok(())
        });
    }
}

#[test]
fn building_a_matrix_gives_back_all_that_it_does_not_keep() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let n = 200_000usize;
    let rows: Vec<i32> = (0..n).map(|e| ((e * 7919) % 5000) as i32).collect();
    let cols: Vec<i32> = (0..n).map(|e| (e % 4999) as i32).collect();
    let values = vec![1.0f32; n];
    let build = || SparseMatrix::from_coo(5000, 5000, &rows, &cols, &values).unwrap();
    drop(build());
    let before = LIVE.load(Relaxed);
    let metered = Device::cpu().live_bytes();
    let a = build();
    assert_eq!(Device::cpu().live_bytes() - metered, a.bytes() as u64);
    assert!(LIVE.load(Relaxed).abs_diff(before + a.bytes() as u64) <= slack());
    drop(a);
    assert_eq!(Device::cpu().live_bytes(), metered);
    assert!(LIVE.load(Relaxed).abs_diff(before) <= slack());
}
