//! The documents are true: every code block of every document is compiled, run, read or checked,
//! and the agent of the README does as it says. `blocks.rs` has the convention.

mod approvals;
mod blocks;
mod compile;
mod data;
mod dry_run;
mod inline;
mod masks;
mod postgres;
mod refunds;
mod roles;
mod session;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("there is a root")
}
