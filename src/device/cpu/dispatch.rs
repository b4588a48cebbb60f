//! From a tensor's dtype to the Rust type of its elements: the macros through which every method of
//! the device chooses its kernel.

/// Runs an expression with `$T` standing for the tensor's float type.
macro_rules! float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::dtype::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::dtype::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::dtype::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            other => unreachable!("ops only pass float tensors here, not {other}"),
        }
    };
}

/// Runs an expression with `$T` standing for the tensor's integer type.
macro_rules! integer {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::dtype::DType::I64 => {
                type $T = i64;
                $body
            }
            other => unreachable!("ops only pass integer tensors here, not {other}"),
        }
    };
}

/// Runs an expression with `$T` standing for the tensor's type, whichever it is.
macro_rules! any {
    ($dtype:expr, $T:ident => $body:expr) => {
        if $dtype.is_float() {
            float!($dtype, $T => $body)
        } else {
            integer!($dtype, $T => $body)
        }
    };
}
