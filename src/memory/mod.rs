//! Who holds how many bytes, and why: the meter that counts them, the limit that is asked first,
//! the scopes that name stretches of a step, and the report that prints what was seen.

mod bytes;
mod meter;
mod purpose;
mod report;
mod scope;

pub use bytes::{GIB, KIB, MIB, format_bytes, parse_bytes};
pub(crate) use meter::{Meter, Reservation};
pub use purpose::{ByPurpose, Purpose};
pub(crate) use purpose::{PurposeGuard, current_purpose};
pub use report::{DriverMemory, Report};
pub use scope::{Scope, ScopeReport};
