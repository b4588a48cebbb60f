//! Who holds how many bytes, and why: the meter that counts them, the limit that is asked first,
//! the scopes that name stretches of a step, the recorder that logs every piece (`replay` works out what was
//! `recorded`), and the report that prints what was seen.

mod bytes;
mod fault;
mod limit;
mod meter;
mod pass;
mod purpose;
mod recorded;
mod recorder;
mod replay;
mod report;
mod reports;
mod scope;
#[cfg(feature = "plotters")]
mod svg;
mod table;
mod timeline;

pub use bytes::{GIB, KIB, MIB, format_bytes, parse_bytes};
pub use fault::Fault;
pub use limit::LimitGuard;
pub(crate) use meter::{Meter, Reservation};
pub use pass::Pass;
pub(crate) use pass::PassGuard;
pub use purpose::{ByPurpose, Purpose};
pub(crate) use purpose::{PurposeGuard, current_purpose};
pub use recorded::{Allocations, OperationReport, Recorded, WorkspaceReport};
pub(crate) use recorder::{Planned, Taker};
pub use report::{DriverMemory, Report};
pub use reports::Reports;
pub use scope::{Scope, ScopeReport};
pub use timeline::{Phase, Timeline};
