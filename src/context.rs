//! What is in force on a thread: whether operations are recorded, workspace caps, TF32 scopes, open scopes, and
//! what new memory is for. Set by guards, read by operations before they reach a device.

use crate::memory::Purpose;
use std::cell::RefCell;

/// The guards' state of one thread.
pub(crate) struct Context {
    /// How many `no_grad` are open.
    pub(crate) no_grad: u32,
    /// Caps in force, innermost last: guard's number, device, bytes.
    pub(crate) caps: Vec<(u64, usize, u64)>,
    /// Permissions and bans of TF32, innermost last: guard's number, device, whether it is allowed.
    pub(crate) tf32: Vec<(u64, usize, bool)>,
    /// Ids of the open scopes, outermost first.
    pub(crate) scopes: Vec<u64>,
    /// What is allocated now is for this.
    pub(crate) purpose: Purpose,
}

impl Context {
    const fn new() -> Context {
        Context {
            no_grad: 0,
            caps: Vec::new(),
            tf32: Vec::new(),
            scopes: Vec::new(),
            purpose: Purpose::Other,
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Context> = const { RefCell::new(Context::new()) };
}

/// Reads or changes this thread's context.
pub(crate) fn with<R>(f: impl FnOnce(&mut Context) -> R) -> R {
    CURRENT.with_borrow_mut(f)
}

/// Puts the context aside until this is dropped. A worker of a thread pool that waits for its own
/// work may be handed a caller's other task meanwhile, which must not find it.
pub(crate) struct Aside(Context);

impl Aside {
    pub(crate) fn new() -> Aside {
        Aside(CURRENT.replace(Context::new()))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        with(|current| std::mem::swap(&mut self.0, current));
    }
}
