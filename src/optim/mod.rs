//! Optimisers: they change parameters in place, in one pass over each, and allocate all the state
//! they need before they touch anything.

mod adam;
mod sgd;
mod state;

pub use adam::{Adam, AdamOptions, AdamW};
pub use sgd::{Sgd, SgdOptions};
