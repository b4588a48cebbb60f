//! The recorded step: values that may have a place on a tape, the nodes that remember how they came
//! to be, and the backward pass that takes those nodes as it goes.
//!
//! Nodes are owned by the [`Var`]s and the nodes that follow from them; the tape knows them weakly.
//! So a value that nobody holds and no gradient rule needs is freed at once, in the forward pass
//! too, and so is a branch that no live `Var` leads to. Dropping the tape lets go of all of it.

mod backward;
mod checkpoint;
mod custom;
mod gradcheck;
mod gradients;
mod no_grad;
mod node;
mod parameter;
mod var;

pub(crate) use backward::{Backward, add as add_gradients, guards as backward_guards};
pub use checkpoint::checkpoint;
pub use custom::{Function, Saves};
pub use gradcheck::{GradCheck, gradcheck};
pub use gradients::Gradients;
pub use no_grad::{NoGrad, no_grad};
pub use node::Tape;
pub(crate) use node::{Rule, Saved};
pub use parameter::Parameter;
pub(crate) use parameter::ParameterId;
pub use var::Var;
