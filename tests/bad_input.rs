//! Everything wrong that a caller can pass is an error before work starts, which names the
//! operation and the numbers; nothing is allocated, nothing panics. Empty tensors that are valid
//! work.

mod support;

use capgrad::{
    Conv1d, Conv1dOptions, ConvTranspose1d, ConvTranspose1dOptions, CpuOptions, CudaOptions, DType,
    Device, Error, LayerNorm, Linear, Padding, Result, SparseMatrix, Tape, Tensor, Var,
};
use support::{Kind, devices, values};

fn ones(shape: &[usize], dtype: DType, device: &Device) -> Var {
    Var::from(Tensor::ones(shape, dtype, device).unwrap())
}

/// What the message must name, and the attempt.
type Try<'a> = (&'a [&'a str], Box<dyn Fn() -> Result<()> + 'a>);

/// Each is an error that contains these parts, and takes no memory.
fn all_refused(device: &Device, tries: Vec<Try<'_>>) {
    let live = device.report().live;
    device.reset_peak();
    for (parts, attempt) in tries {
        let text = match attempt() {
            Ok(()) => panic!("accepted: {parts:?}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(text.contains(part), "{text:?} does not name {part:?}");
        }
        let report = device.report();
        assert_eq!((report.live, report.allocations), (live, 0), "{text}");
    }
}

macro_rules! refuse {
    ($device:expr; $($parts:expr => $attempt:expr),* $(,)?) => {
        all_refused($device, vec![$((&$parts, Box::new(|| $attempt.map(drop)))),*])
    };
}

#[test]
fn convolutions_refuse_what_does_not_go_together() {
    for device in devices() {
        let x = ones(&[2, 6, 9], DType::F32, &device);
        let w = ones(&[4, 6, 3], DType::F32, &device);
        let grouped = ones(&[4, 3, 3], DType::F32, &device);
        let flat = ones(&[6, 9], DType::F32, &device);
        let bias = ones(&[4], DType::F32, &device);
        let long = ones(&[4, 6, 10], DType::F32, &device);
        let no_taps = ones(&[4, 6, 0], DType::F32, &device);
        let double = ones(&[4, 6, 3], DType::F64, &device);
        let integers = ones(&[4, 6, 3], DType::I32, &device);
        let integer_x = ones(&[2, 6, 9], DType::I32, &device);
        let scalar = ones(&[], DType::F32, &device);
        let four = ones(&[2, 6, 9, 1], DType::F32, &device);
        let five = ones(&[2, 6, 9, 1, 1], DType::F32, &device);
        let o = Conv1dOptions::default();
        let with = |change: fn(&mut Conv1dOptions)| {
            let mut options = Conv1dOptions::default();
            change(&mut options);
            options
        };
        refuse!(&device;
            ["conv1d", "[6, 9]", "[4, 6, 3]"] => flat.conv1d(&w, None, &o),
            ["conv1d", "[]"] => scalar.conv1d(&w, None, &o),
            ["conv1d", "[2, 6, 9, 1]"] => four.conv1d(&w, None, &o),
            ["conv1d", "[2, 6, 9, 1, 1]"] => x.conv1d(&five, None, &o),
            ["conv1d", "[2, 6, 9]", "[4, 3, 3]"] => x.conv1d(&grouped, None, &o),
            ["conv1d", "groups", "4", "6"] => x.conv1d(&w, None, &with(|o| o.groups = 4)),
            ["conv1d", "groups", "3"] => x.conv1d(&w, None, &with(|o| o.groups = 3)),
            ["conv1d", "groups", "0"] => x.conv1d(&w, None, &with(|o| o.groups = 0)),
            ["conv1d", "stride", "0"] => x.conv1d(&w, None, &with(|o| o.stride = 0)),
            ["conv1d", "dilation", "0"] => x.conv1d(&w, None, &with(|o| o.dilation = 0)),
            ["conv1d", "kernel", "0"] => x.conv1d(&no_taps, None, &o),
            ["conv1d", "10", "9"] => x.conv1d(&long, None, &o),
            ["conv1d", "3 taps", "dilation 5", "11", "9"] =>
                x.conv1d(&w, None, &with(|o| o.dilation = 5)),
            ["conv1d", "dilation"] => x.conv1d(&w, None, &with(|o| o.dilation = usize::MAX)),
            ["conv1d", "dilation"] => x.conv1d(&w, None, &with(|o| o.dilation = usize::MAX / 2)),
            ["conv1d", "stride"] => x.conv1d(&w, None, &with(|o| o.stride = usize::MAX)),
            ["conv1d", "groups"] => x.conv1d(&w, None, &with(|o| o.groups = usize::MAX)),
            ["conv1d", "padding"] =>
                x.conv1d(&w, None, &with(|o| o.padding = Padding::Explicit(usize::MAX, 1))),
            ["conv1d", "padding"] =>
                x.conv1d(&w, None, &with(|o| o.padding = Padding::Explicit(0, usize::MAX))),
            ["conv1d"] =>
                x.conv1d(&w, None, &with(|o| o.padding = Padding::Explicit(1 << 61, 1 << 61))),
            ["conv1d", "stride", "2"] => x.conv1d(&w, None, &with(|o| {
                o.stride = 2;
                o.padding = Padding::Same;
            })),
            ["conv1d", "[4]"] => x.conv1d(&w, Some(&ones_like(&w)), &o),
            ["conv1d", "[6, 9]"] => x.conv1d(&w, Some(&flat), &o),
            ["conv1d", "f32", "f64"] => x.conv1d(&double, None, &o),
            ["conv1d", "i32"] => x.conv1d(&integers, None, &o),
            ["conv1d", "i32"] => integer_x.conv1d(&integers, None, &o),
        );
        assert!(x.conv1d(&w, Some(&bias), &o).is_ok());
    }
}

/// Another handle on the same memory, for a bias of the wrong rank.
fn ones_like(v: &Var) -> Var {
    v.detach()
}

#[test]
fn transposed_convolutions_refuse_what_does_not_go_together() {
    for device in devices() {
        let x = ones(&[2, 6, 9], DType::F32, &device);
        let w = ones(&[6, 4, 3], DType::F32, &device);
        let other = ones(&[5, 4, 3], DType::F32, &device);
        let short = ones(&[2, 6, 1], DType::F32, &device);
        let empty = ones(&[2, 6, 0], DType::F32, &device);
        let bias = ones(&[5], DType::F32, &device);
        let o = ConvTranspose1dOptions::default();
        let with = |change: fn(&mut ConvTranspose1dOptions)| {
            let mut options = ConvTranspose1dOptions::default();
            change(&mut options);
            options
        };
        const OP: &str = "conv_transpose1d";
        refuse!(&device;
            [OP, "[2, 6, 9]", "[5, 4, 3]"] => x.conv_transpose1d(&other, None, &o),
            [OP, "groups", "4", "6"] => x.conv_transpose1d(&w, None, &with(|o| o.groups = 4)),
            [OP, "stride", "0"] => x.conv_transpose1d(&w, None, &with(|o| o.stride = 0)),
            [OP, "dilation", "0"] => x.conv_transpose1d(&w, None, &with(|o| o.dilation = 0)),
            [OP, "output_padding", "1"] =>
                x.conv_transpose1d(&w, None, &with(|o| o.output_padding = 1)),
            [OP, "padding", "2", "3"] => short.conv_transpose1d(&w, None, &with(|o| o.padding = 2)),
            [OP, "padding"] => x.conv_transpose1d(&w, None, &with(|o| o.padding = usize::MAX)),
            [OP] => empty.conv_transpose1d(&w, None, &o),
            [OP, "stride"] => x.conv_transpose1d(&w, None, &with(|o| o.stride = usize::MAX / 2)),
            [OP, "dilation"] =>
                x.conv_transpose1d(&w, None, &with(|o| o.dilation = usize::MAX / 2)),
            [OP, "more bytes"] => x.conv_transpose1d(&w, None, &with(|o| o.stride = 1 << 57)),
            [OP, "[4]", "[5]"] => x.conv_transpose1d(&w, Some(&bias), &o),
        );
    }
}

#[test]
fn sizes_that_overflow_are_refused() {
    for device in devices() {
        let x = Tensor::ones([4], DType::F32, &device).unwrap();
        let v = Var::from(x.clone());
        let huge = [usize::MAX, 2];
        refuse!(&device;
            ["zeros", &usize::MAX.to_string(), "f64"] => Tensor::zeros(huge, DType::F64, &device),
            ["ones"] => Tensor::ones([usize::MAX / 4 + 1], DType::F32, &device),
            ["full"] => Tensor::full([1 << 32, 1 << 32], 1.0, DType::BF16, &device),
            ["rand"] => Tensor::rand([isize::MAX as usize], DType::F16, &device),
            ["randn", "i32"] => Tensor::randn([2], DType::I32, &device),
            ["rand", "i64"] => Tensor::rand([2], DType::I64, &device),
            ["from_slice", "[2, 3]", "6", "4"] => Tensor::from_slice(&[0f32; 4], [2, 3], &device),
            ["from_slice"] => Tensor::from_slice(&[0f32; 4], huge, &device),
            ["reshape", "[4]", "[3]"] => x.reshape([3]),
            ["reshape"] => x.reshape([usize::MAX, usize::MAX]),
            ["reshape", "[4]", "[0]"] => v.reshape([0]),
            ["to_vec", "f32", "f64"] => x.to_vec::<f64>(),
            ["item", "[4]"] => x.item(),
            ["backward", "[4]"] => v.clone().backward(),
        );
        // No size, however large, panics in the arithmetic; 0 anywhere makes it valid.
        let empty = Tensor::zeros([usize::MAX, 0], DType::F64, &device).unwrap();
        assert_eq!((empty.elements(), empty.bytes(), values(&empty).len()), (0, 0, 0));
    }
}

#[test]
fn products_refuse_what_does_not_go_together() {
    for device in devices() {
        let tensors: Vec<Var> =
            [&[][..], &[3], &[2, 3], &[4, 2, 3], &[1, 4, 2, 3], &[1, 1, 4, 2, 3]]
                .map(|shape| ones(shape, DType::F32, &device))
                .into();
        let square = ones(&[3, 3], DType::F32, &device);
        let batch = ones(&[5, 3, 2], DType::F32, &device);
        let double = ones(&[3, 3], DType::F64, &device);
        let integer = ones(&[3, 3], DType::I64, &device);
        let t = &tensors;
        refuse!(&device;
            ["matmul", "[]"] => t[0].matmul(&square),
            ["matmul", "[3]"] => t[1].matmul(&square),
            ["matmul", "[1, 4, 2, 3]"] => t[4].matmul(&square),
            ["matmul", "[1, 1, 4, 2, 3]"] => square.matmul(&t[5]),
            ["matmul", "[3, 3]", "[2, 3]"] => square.matmul(&t[2]),
            ["matmul", "[4, 2, 3]", "[5, 3, 2]"] => t[3].matmul(&batch),
            ["matmul", "f32", "f64"] => square.matmul(&double),
            ["matmul", "i64"] => integer.matmul(&integer),
            ["linear", "[]"] => t[0].linear(&square, None),
            ["linear", "[3]"] => t[2].linear(&t[1], None),
            ["linear", "[5, 3, 2]", "3"] => batch.linear(&square, None),
            ["linear", "[3]", "[2, 3]"] => square.linear(&square, Some(&t[2])),
        );
    }
}

#[test]
fn layers_refuse_their_sizes() {
    for device in devices() {
        let d = &device;
        refuse!(d;
            ["in_channels", "0"] => Conv1d::builder(0, 1, 1).build(d),
            ["out_channels", "0"] => Conv1d::builder(1, 0, 1).build(d),
            ["kernel", "0"] => Conv1d::builder(1, 1, 0).build(d),
            ["groups", "0"] => Conv1d::builder(1, 1, 1).groups(0).build(d),
            ["in_channels", "3", "2"] => Conv1d::builder(3, 4, 1).groups(2).build(d),
            ["out_channels", "3", "2"] => Conv1d::builder(4, 3, 1).groups(2).build(d),
            ["conv1d"] => Conv1d::builder(usize::MAX, usize::MAX, 3).build(d),
            ["i32"] => Conv1d::builder(1, 1, 1).dtype(DType::I32).build(d),
            ["out_channels", "3", "2"] => ConvTranspose1d::builder(4, 3, 1).groups(2).build(d),
            ["kernel", "0"] => ConvTranspose1d::builder(4, 3, 0).build(d),
            ["inputs", "0"] => Linear::new("", 0, 1, true, DType::F32, d),
            ["outputs", "0"] => Linear::new("", 1, 0, true, DType::F32, d),
            ["linear"] => Linear::new("", usize::MAX, 2, true, DType::F32, d),
            ["features", "0"] => LayerNorm::new("", 0, DType::F32, d),
        );
        let conv = Conv1d::builder(2, 3, 3).build(d).unwrap();
        refuse!(d;
            ["conv1d", "[1, 3, 9]"] => conv.plan([1, 3, 9]),
            ["conv1d", "3", "2"] => conv.plan([1, 2, 2]),
            ["conv1d", "[9]"] => conv.plan([9]),
        );
    }
}

#[test]
fn devices_that_are_not_there_and_settings_that_are_none() {
    let refused = |result: Result<Device>| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::DeviceNotAvailable { .. } | Error::Argument { .. }),
            "{error}"
        );
    };
    refused(Device::cuda(99));
    refused(Device::new_cuda(99, CudaOptions::default()));
    refused("cuda:99".parse());
    refused("cuda:-1".parse());
    refused("tpu".parse());
    refused("".parse());
    refused(Device::new_cpu(CpuOptions { threads: Some(0), ..Default::default() }));
    assert!(Device::best().is_ok());
}

#[test]
fn gradients_of_another_shape_dtype_or_device_are_refused() {
    for device in devices() {
        let tape = Tape::new();
        let x = tape.variable(Tensor::ones([2, 3], DType::F32, &device).unwrap()).unwrap();
        let other = Kind::of(&device).poisoned();
        let y = || x.square().unwrap();
        let wrong = [
            Tensor::ones([3, 2], DType::F32, &device).unwrap(),
            Tensor::ones([2, 3], DType::F64, &device).unwrap(),
            Tensor::ones([2, 3], DType::F32, &other).unwrap(),
            Tensor::ones([2, 3], DType::I32, &device).unwrap(),
        ];
        let live = device.live_bytes();
        for gradient in &wrong {
            let error = y().backward_with(gradient.clone()).err().unwrap();
            assert!(error.to_string().starts_with("backward"), "{error}");
            assert_eq!(device.live_bytes(), live);
        }
        assert!(tape.variable(wrong[3].clone()).is_err());
    }
}

#[test]
fn empty_tensors_that_are_valid_work() {
    for device in devices() {
        let tape = Tape::new();
        let w = tape.variable(Tensor::ones([4, 3, 2], DType::F32, &device).unwrap()).unwrap();
        let x = tape.variable(Tensor::ones([0, 3, 5], DType::F32, &device).unwrap()).unwrap();
        let y = x.conv1d(&w, None, &Conv1dOptions::default()).unwrap();
        assert_eq!(y.dims(), [0, 4, 4]);
        let gradients = y.sum().unwrap().backward().unwrap();
        assert_eq!(values(gradients.get(&w).unwrap()), [0.0; 24]);
        assert_eq!(gradients.get(&x).unwrap().dims(), [0, 3, 5]);
        // Channels of none, in or out, and a length of none that padding makes long enough.
        let options = Conv1dOptions { padding: Padding::Explicit(1, 1), ..Default::default() };
        let x = ones(&[2, 0, 3], DType::F32, &device);
        let y = x.conv1d(&ones(&[4, 0, 2], DType::F32, &device), None, &options).unwrap();
        assert_eq!(values(y.tensor()), [0.0; 2 * 4 * 4]);
        let x = ones(&[2, 3, 0], DType::F32, &device);
        let y = x.conv1d(&ones(&[4, 3, 2], DType::F32, &device), None, &options).unwrap();
        assert_eq!((y.dims(), values(y.tensor())), (&[2, 4, 1][..], vec![0.0; 8]));
        let y = ones(&[2, 3, 3], DType::F32, &device)
            .conv1d(&ones(&[0, 3, 2], DType::F32, &device), None, &options)
            .unwrap();
        assert_eq!(y.dims(), [2, 0, 4]);
        // An inner extent of none sums nothing.
        let product = |a: &[usize], b: &[usize]| {
            ones(a, DType::F32, &device).matmul(&ones(b, DType::F32, &device)).unwrap()
        };
        assert_eq!(values(product(&[2, 0], &[0, 3]).tensor()), [0.0; 6]);
        assert_eq!(product(&[0, 2], &[2, 3]).dims(), [0, 3]);
        assert_eq!(product(&[0, 2, 3], &[3, 4]).dims(), [0, 2, 4]);
        let bias = ones(&[2], DType::F32, &device);
        let y = ones(&[3, 0], DType::F32, &device);
        let y = y.linear(&ones(&[2, 0], DType::F32, &device), Some(&bias)).unwrap();
        assert_eq!(values(y.tensor()), [1.0; 6]);
        assert_eq!(
            Tensor::zeros([0], DType::I64, &device).unwrap().to_vec::<i64>().unwrap(),
            [0i64; 0]
        );
    }
}

#[test]
fn what_no_machine_has_is_an_error_and_not_the_end_of_the_process() {
    for device in devices() {
        let before = device.live_bytes();
        let sizes = [1 << 50, 1 << 58];
        for size in sizes {
            let error = Tensor::zeros([size], DType::F64, &device).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
            assert_eq!(device.live_bytes(), before);
        }
        // Refusals leave the device in order.
        assert_eq!(values(&Tensor::ones([3], DType::F64, &device).unwrap()), [1.0; 3]);
        let wide = SparseMatrix::from_coo(1 << 20, 1 << 30, &[0], &[0], &[1.0f32][..]).unwrap();
        let error = wide.to_dense().unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. } | Error::MemoryLimit { .. }), "{error}");
        let error = Device::new_cpu(CpuOptions { threads: Some(usize::MAX), ..Default::default() });
        assert!(matches!(error, Err(Error::Argument { argument: "threads", .. })));
        assert_eq!(device.live_bytes(), before);
    }
}

#[test]
fn layers_refuse_what_could_never_run() {
    for device in devices() {
        let before = device.live_bytes();
        let conv = || Conv1d::builder(2, 2, 3);
        assert!(conv().stride(0).build(&device).is_err());
        assert!(conv().dilation(usize::MAX).build(&device).is_err());
        assert!(conv().padding(Padding::Same).stride(2).build(&device).is_err());
        let transposed = || ConvTranspose1d::builder(2, 2, 3);
        assert!(transposed().stride(0).build(&device).is_err());
        assert!(transposed().stride(2).output_padding(2).build(&device).is_err());
        assert_eq!(device.live_bytes(), before);
    }
}
