//! Queue pairs, which post through the function tables of the verbs.

mod builder;
mod pair;
mod verbs;

pub use pair::HwQueuePair;
pub use verbs::Inline;
pub(crate) use verbs::{Service, create_qp_ex};
