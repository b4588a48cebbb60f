//! The limit promise: whichever allocation of a training step is refused, the step is an error and
//! nothing is lost: live bytes, parameters and optimiser state are as before, and the same step
//! then succeeds with the same numbers. A workspace that fits the cap but not the limit is planned
//! anew.

mod support;

use capgrad::optim::AdamOptions;
use capgrad::{
    Adam, Conv1d, DType, Device, Error, Linear, Padding, Purpose, Result, SparseForm, SparseMatrix,
    SparseOptions, Tape, Tensor, Var, checkpoint,
};
use support::conv::{Operands, Sizes};
use support::{Kind, Numbers, assert_close, bits, devices, kinds, tensor, workspace_peak};

/// A small net with everything in it: convolutions, a sparse product, a checkpoint,
/// dropout.
struct Net {
    device: Device,
    convs: [Conv1d; 2],
    head: Linear,
    a: SparseMatrix,
    adam: Adam,
    x: Tensor,
    steps: u64,
    /// Peak since the limited phase began.
    peak: u64,
    /// Live bytes when the limited phase began.
    start: u64,
}

/// A stretch of the step from whose beginning a limit is in force.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Forward,
    Backward,
    Optimiser,
}

impl Net {
    fn new(kind: Kind, dtype: DType, cap: u64, warm: usize) -> Net {
        let device = kind.poisoned();
        // Losses and parameters are compared bit for bit.
        device.set_deterministic(true);
        device.set_workspace_cap(cap);
        device.set_seed(5);
        let conv = |from, to, kernel| {
            Conv1d::builder(from, to, kernel)
                .padding(Padding::Same)
                .dtype(dtype)
                .build(&device)
                .unwrap()
        };
        let convs = [conv(3, 8, 3), conv(8, 4, 1)];
        let head = Linear::new("head", 40, 5, true, dtype, &device).unwrap();
        let a = {
            let n = 40usize;
            let (i, j): (Vec<usize>, Vec<usize>) = (0..160).map(|e| (e / 4, e * 7 % n)).unzip();
            let dense = Tensor::zeros([n, n], dtype, &device).unwrap();
            let values = Numbers(1).sixteenths(160);
            let mut data = vec![0.0; n * n];
            for e in 0..160 {
                data[i[e] * n + j[e]] = values[e];
            }
            dense.copy_from(&tensor(&data, [n, n], dtype, &device)).unwrap();
            SparseMatrix::from_dense(&dense).unwrap()
        };
        let parameters = convs.iter().flat_map(Conv1d::parameters).chain(head.parameters());
        let adam = Adam::new(parameters, AdamOptions::default()).unwrap();
        let x = tensor(&Numbers(2).sixteenths(6 * 3 * 10), [6, 3, 10], dtype, &device);
        let mut net = Net { device, convs, head, a, adam, x, steps: 0, peak: 0, start: 0 };
        for _ in 0..warm {
            net.step(None).unwrap();
        }
        net
    }

    fn begin(&mut self, phase: Phase, limit: Option<(Phase, u64)>) {
        if let Some((_, bytes)) = limit.filter(|&(limited, _)| limited == phase) {
            self.device.set_memory_limit(Some(bytes)).unwrap();
        }
        if limit.is_none_or(|(limited, _)| limited == phase) {
            self.device.reset_peak();
            self.start = self.device.live_bytes();
        }
    }

    /// One step; the loss.
    fn step(&mut self, limit: Option<(Phase, u64)>) -> Result<f64> {
        let result = self.phases(limit);
        self.peak = self.device.report().peak;
        self.device.set_memory_limit(None)?;
        result.inspect(|_| self.steps += 1)
    }

    fn phases(&mut self, limit: Option<(Phase, u64)>) -> Result<f64> {
        let tape = Tape::for_step(3, self.steps);
        self.begin(Phase::Forward, limit);
        let h = self.convs[0].forward(&tape.constant(self.x.clone()))?.relu()?.dropout(0.25)?;
        let second = self.convs[1].clone();
        let h = checkpoint(&[&h], move |h| second.forward(&h[0])?.tanh())?;
        let h = self.a.apply(&h.flatten(1)?)?;
        let loss = self.head.forward(&h)?.square()?.mean()?;
        drop(h);
        let value = loss.item()?;
        self.begin(Phase::Backward, limit);
        let gradients = loss.backward()?;
        self.begin(Phase::Optimiser, limit);
        self.adam.step(&gradients)?;
        Ok(value)
    }

    fn parameters(&self) -> Vec<u64> {
        self.adam.parameters().flat_map(|parameter| bits(parameter.tensor())).collect()
    }
}

/// Refuses every allocation that sets a new peak of `phase`, the highest first.
fn refuse_each(kind: Kind, dtype: DType, cap: u64, warm: usize, phase: Phase) -> (usize, usize) {
    let mut twin = Net::new(kind, dtype, cap, warm);
    let twin_loss = twin.step(Some((phase, u64::MAX))).unwrap();
    let (after_step, live_after) = (twin.parameters(), twin.device.live_bytes());
    let mut limit = twin.peak - 1;
    let (mut refused, mut planned_again) = (0, 0);
    loop {
        let mut net = Net::new(kind, dtype, cap, warm);
        let (before, live) = (net.parameters(), net.device.report().live);
        let result = net.step(Some((phase, limit)));
        assert!(net.peak <= limit.max(net.start), "{phase:?} went over {limit} to {}", net.peak);
        let (next, start) = (net.peak, net.start);
        match result {
            Err(Error::MemoryLimit { limit: told, live, requested, .. }) => {
                assert_eq!(told, limit);
                assert!(live + requested > limit, "{live} + {requested} fits {limit}");
                refused += 1;
            }
            Err(error) => panic!("{phase:?} under {limit}: {error}"),
            Ok(_) => {
                // Planned again with less workspace.
                planned_again += 1;
                assert!(planned_again < 500);
                limit = next - 1;
                continue;
            }
        }
        assert_eq!(net.device.report().live, live, "{phase:?} under {limit}");
        assert_eq!(net.parameters(), before, "{phase:?} under {limit}");
        let loss = net.step(None).unwrap();
        assert_eq!(loss.to_bits(), twin_loss.to_bits(), "{phase:?} under {limit}");
        assert_eq!(net.parameters(), after_step, "{phase:?} under {limit}");
        assert_eq!(net.device.live_bytes(), live_after);
        if next <= start {
            return (refused, planned_again);
        }
        limit = next - 1;
    }
}

#[test]
fn every_allocation_of_a_step_can_be_refused() {
    let dtypes = [DType::F32, DType::BF16];
    for (kind, dtype) in kinds().flat_map(|kind| dtypes.map(|dtype| (kind, dtype))) {
        for (cap, warm) in [(0, 0), (0, 2), (64 << 20, 0)] {
            for (phase, least) in [(Phase::Forward, 6), (Phase::Backward, 3), (Phase::Optimiser, 1)]
            {
                if phase == Phase::Optimiser && warm > 0 {
                    // Its state is there already: it allocates nothing.
                    continue;
                }
                let (refused, again) = refuse_each(kind, dtype, cap, warm, phase);
                let what = format!("{kind:?}, {dtype}, {phase:?}, cap {cap}, {warm} steps before");
                assert!(refused >= least, "{what}: {refused} refused, {again} planned again");
            }
        }
    }
}

#[test]
fn an_optimiser_with_its_state_steps_under_a_limit_of_what_is_live() {
    for kind in kinds() {
        let mut net = Net::new(kind, DType::F32, 0, 1);
        let before = net.parameters();
        net.step(Some((Phase::Optimiser, 1))).unwrap();
        assert_ne!(net.parameters(), before);
    }
}

#[test]
fn a_workspace_that_fits_the_cap_but_not_the_limit_is_planned_again() {
    let sizes =
        Sizes { n: 4, c_in: 48, c_out: 64, l: 300, k: 5, left: 2, right: 2, ..Default::default() };
    let o = Operands::new(sizes, DType::F32, 1, true);
    let expected = sizes.forward(&o.x, &o.w, None);
    for device in devices() {
        let (x, w) = (Var::from(o.x(&device)), Var::from(o.w(&device)));
        let forward = || {
            device.reset_peak();
            x.conv1d(&w, None, &sizes.options())
        };
        drop(forward().unwrap());
        let free = workspace_peak(&device);
        if Kind::of(&device) == Kind::Cpu {
            // On a GPU the fastest algorithm may be one without.
            assert!(free > 10_000, "the test needs a candidate with a workspace, not {free}");
        }
        let (live, y_bytes) = (device.live_bytes(), expected.len() as u64 * 4);
        for room in [free, free.saturating_sub(1), free / 2, free / 5, 1.min(free), 0] {
            device.set_memory_limit(Some(live + y_bytes + room)).unwrap();
            let y = forward().unwrap();
            assert!(workspace_peak(&device) <= room, "room {room}");
            assert_eq!(workspace_peak(&device) == free, room == free);
            assert_close(format!("room {room}"), y.tensor(), &expected);
        }
        device.set_memory_limit(Some(live + y_bytes - 1)).unwrap();
        let error = forward().unwrap_err();
        let Error::MemoryLimit { requested, limit, purpose, .. } = error else { panic!("{error}") };
        assert_eq!((requested, limit), (y_bytes, live + y_bytes - 1));
        assert_eq!(purpose, Purpose::Activation);
        assert_eq!(device.live_bytes(), live);
    }
}

#[test]
fn a_sparse_product_plans_again_too() {
    for device in devices() {
        let n = 500;
        let (i, j): (Vec<usize>, Vec<usize>) = (0..4000).map(|e| (e % n, e * 31 % n)).unzip();
        let a = SparseMatrix::from_coo(n, n, &i, &j, Numbers(1).sixteenths(4000)).unwrap();
        let a = a.to(&device).unwrap();
        let x = tensor(&Numbers(2).sixteenths(20 * n), [20, n], DType::F64, &device);
        let run = || -> Result<Vec<u64>> {
            let tape = Tape::new();
            let v = tape.variable(x.clone())?;
            let y = a.apply(&v)?;
            let gradients = y.backward_with(x.clone())?;
            Ok(bits(gradients.get(&v).unwrap()))
        };
        device.reset_peak();
        // Sixteenths add up exactly in f64, so every algorithm gives the same bits.
        let expected = run().unwrap();
        let live = device.live_bytes();
        let bytes = x.bytes() as u64;
        for room in [1 << 20, 50_000, 5_000, 0] {
            device.set_memory_limit(Some(live + 2 * bytes + room)).unwrap();
            device.reset_peak();
            assert_eq!(run().unwrap(), expected, "room {room}");
            assert!(device.report().peak <= live + 2 * bytes + room);
        }
        device.set_memory_limit(Some(live + bytes - 1)).unwrap();
        assert!(matches!(run(), Err(Error::MemoryLimit { .. })));
        assert_eq!(device.live_bytes(), live);
    }
}

#[test]
fn every_way_to_make_a_tensor_asks_the_limit() {
    for device in kinds().map(Kind::plain) {
        let base = device.live_bytes();
        let kept = Tensor::ones([100], DType::F32, &device).unwrap();
        let other = Tensor::ones([1000], DType::F32, &Kind::Cpu.plain()).unwrap();
        let host = SparseMatrix::from_coo(3000, 1, &[0], &[0], &[1.0f32]).unwrap();
        let most = base + 4000;
        device.set_memory_limit(Some(most)).unwrap();
        assert_eq!(device.memory_limit(), Some(most));
        let v = Var::from(kept.clone());
        let rows = SparseOptions { form: SparseForm::Csr, ..Default::default() };
        let tries: Vec<(&str, Result<()>)> = vec![
            ("sparse to", host.to_with(&device, rows).map(drop)),
            ("zeros", Tensor::zeros([901], DType::F32, &device).map(drop)),
            ("rand", Tensor::rand([901], DType::F32, &device).map(drop)),
            ("randn", Tensor::randn([901], DType::F32, &device).map(drop)),
            ("from_vec", Tensor::from_vec(vec![1i64; 451], [451], &device).map(drop)),
            ("to", other.to(&device).map(drop)),
            ("broadcast", v.add(&v.reshape([100, 1]).unwrap()).map(drop)),
            ("conv layer", Conv1d::builder(30, 31, 1).build(&device).map(drop)),
            ("linear", Linear::new("", 30, 31, true, DType::F32, &device).map(drop)),
        ];
        for (what, result) in tries {
            let error = result.unwrap_err();
            assert!(
                matches!(error, Error::MemoryLimit { limit, .. } if limit == most),
                "{what}: {error}"
            );
            let text = error.to_string();
            assert!(text.contains(device.name()) && text.contains(&most.to_string()), "{text}");
            assert_eq!(device.live_bytes() - base, 400, "{what}");
        }
        drop(Tensor::zeros([900], DType::F32, &device).unwrap());
        // Below what is live: nothing is lost, nothing new is given, but for nothing at all.
        device.set_memory_limit(Some(1)).unwrap();
        assert!(Tensor::zeros([1], DType::F32, &device).is_err());
        assert_eq!(Tensor::zeros([0, 5], DType::F32, &device).unwrap().elements(), 0);
        assert_eq!(kept.to_vec::<f32>().unwrap(), [1.0; 100]);
        device.set_memory_limit(None).unwrap();
        assert!(Tensor::zeros([10_000], DType::F32, &device).is_ok());
    }
}

#[test]
fn a_limit_of_zero_is_an_error() {
    for device in kinds().map(Kind::plain) {
        device.set_memory_limit(Some(77)).unwrap();
        let error = device.set_memory_limit(Some(0)).unwrap_err();
        assert!(matches!(error, Error::Argument { op: "set_memory_limit", .. }), "{error}");
        assert_eq!(device.memory_limit(), Some(77));
    }
}
