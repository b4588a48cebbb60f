//! NCCL's functions, of the library that is found at run time. The types are cudarc's; its own loader
//! looks for `libnccl.so`, which is there only where NCCL's headers are.

use crate::device::cuda::libraries;
use cudarc::nccl::sys::{
    ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

macro_rules! functions {
    ($($name:ident = $symbol:literal($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        /// Those that are called here.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            #[allow(non_camel_case_types)]
            fn of(library: &Library) -> Result<Functions, String> {
                $(
                    type $name = unsafe extern "C" fn($($argument),*) -> $result;
                    // SAFETY: the type is that of the function in NCCL's header.
                    let $name = *unsafe { library.get::<$name>($symbol.as_bytes()) }
                        .map_err(|_| format!("the library that was found has no {}", $symbol))?;
                )*
                Ok(Functions { $($name),* })
            }
        }
    };
}

functions! {
    version = "ncclGetVersion"(*mut c_int) -> ncclResult_t;
    unique_id = "ncclGetUniqueId"(*mut ncclUniqueId) -> ncclResult_t;
    init = "ncclCommInitRankConfig"(
        *mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t,
    ) -> ncclResult_t;
    finalize = "ncclCommFinalize"(ncclComm_t) -> ncclResult_t;
    destroy = "ncclCommDestroy"(ncclComm_t) -> ncclResult_t;
    abort = "ncclCommAbort"(ncclComm_t) -> ncclResult_t;
    state = "ncclCommGetAsyncError"(ncclComm_t, *mut ncclResult_t) -> ncclResult_t;
    last_error = "ncclGetLastError"(ncclComm_t) -> *const c_char;
    group_start = "ncclGroupStart"() -> ncclResult_t;
    group_end = "ncclGroupEnd"() -> ncclResult_t;
    all_reduce = "ncclAllReduce"(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, *mut c_void,
    ) -> ncclResult_t;
    broadcast = "ncclBroadcast"(
        *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, *mut c_void,
    ) -> ncclResult_t;
    all_gather = "ncclAllGather"(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, *mut c_void,
    ) -> ncclResult_t;
    reduce_scatter = "ncclReduceScatter"(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, *mut c_void,
    ) -> ncclResult_t;
}

/// The library's functions, or why it cannot be used.
pub(super) fn functions() -> Result<&'static Functions, String> {
    static FOUND: OnceLock<Result<Functions, String>> = OnceLock::new();
    FOUND.get_or_init(|| Functions::of(libraries::nccl()?)).as_ref().map_err(Clone::clone)
}
