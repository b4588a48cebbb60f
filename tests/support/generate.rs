//! Generated convolutions, as a caller would ask for them.

use super::conv::Sizes;
use capgrad::{DType, Padding};
use proptest::prelude::*;

/// Sizes and padding as a caller gives them: some do not go together.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub sizes: Sizes,
    pub padding: Padding,
    pub dtype: DType,
    pub bias: bool,
    pub seed: u64,
    pub exact: bool,
}

fn padding() -> impl Strategy<Value = Padding> {
    prop_oneof![
        Just(Padding::Valid),
        Just(Padding::Same),
        Just(Padding::Causal),
        (0usize..5, 0usize..5).prop_map(|(left, right)| Padding::Explicit(left, right)),
    ]
}

pub fn case() -> impl Strategy<Value = Case> {
    let channels = (1usize..4, 1usize..5, 1usize..5);
    let window = (1usize..24, 1usize..6, 1usize..4, 1usize..4, padding());
    let rest = (0usize..5, 0usize..4, any::<bool>(), any::<u64>(), any::<bool>());
    (channels, window, rest).prop_map(|(channels, window, rest)| {
        let (groups, per_in, per_out) = channels;
        let (l, k, stride, dilation, padding) = window;
        let (n, dtype, bias, seed, exact) = rest;
        let (c_in, c_out) = (groups * per_in, groups * per_out);
        let mut sizes = Sizes { n, c_in, c_out, l, k, stride, dilation, groups, left: 0, right: 0 };
        let ends = sizes.span() - 1;
        (sizes.left, sizes.right) = match padding {
            Padding::Same => (ends / 2, ends - ends / 2),
            Padding::Causal => (ends, 0),
            Padding::Explicit(left, right) => (left, right),
            _ => (0, 0),
        };
        let dtype = DType::FLOATS[dtype];
        // In f64 nothing that cancels is left over; for the others see `sixteenths`.
        let exact = exact || dtype != DType::F64;
        Case { sizes, padding, dtype, bias, seed, exact }
    })
}
