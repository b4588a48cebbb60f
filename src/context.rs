//! What is in force on a thread: whether operations are recorded, workspace caps, TF32 scopes, open
//! scopes, and what new memory is for. Set by guards, read by operations before they reach a device.

use crate::memory::{Pass, Purpose};
use std::cell::RefCell;

/// What guards have set for devices, innermost last: guard's number, device, value.
pub(crate) struct Settings<T>(Vec<(u64, usize, T)>);

impl<T: Copy> Settings<T> {
    /// Sets a value for the device of this key, and gives the number to take it back with.
    pub(crate) fn set(&mut self, device: usize, value: T) -> u64 {
        let number = self.0.last().map_or(0, |&(number, ..)| number + 1);
        self.0.push((number, device, value));
        number
    }

    /// The innermost value for a device.
    pub(crate) fn of(&self, device: usize) -> Option<T> {
        self.0.iter().rev().find(|&&(_, key, _)| key == device).map(|&(.., value)| value)
    }

    /// Takes a value back; guards may end in any order.
    pub(crate) fn take_back(&mut self, number: u64) {
        self.0.retain(|&(own, ..)| own != number);
    }
}

/// The guards' state of one thread.
pub(crate) struct Context {
    /// How many `no_grad` are open.
    pub(crate) no_grad: u32,
    /// Caps in force, in bytes.
    pub(crate) caps: Settings<u64>,
    /// Whether TF32 is allowed.
    pub(crate) tf32: Settings<bool>,
    /// Ids of the open scopes, outermost first.
    pub(crate) scopes: Vec<u64>,
    /// What is allocated now is for this.
    pub(crate) purpose: Purpose,
    /// Which part of a step is under way.
    pub(crate) pass: Pass,
}

impl Context {
    const fn new() -> Context {
        Context {
            no_grad: 0,
            caps: Settings(Vec::new()),
            tf32: Settings(Vec::new()),
            scopes: Vec::new(),
            purpose: Purpose::Other,
            pass: Pass::Forward,
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
