//! What `efa-tap run` preloads: it stands between a program and the libibverbs and libefa that the
//! program has, and writes down what goes through.
//!
//! [`preload::exports`] has the functions that programs find in the place of the libraries'. They pass every call on,
//! and put functions of [`preload::posting`] and [`preload::polling`] into the tables through which
//! programs post and poll. Objects stay those of the libraries; what is known of them is beside
//! them, in [`preload::state`].
//!
//! The library must never harm its program: it does not wait, it does not fail, and where it cannot
//! record it says so once and passes calls on.

mod exchange;
mod preload;
