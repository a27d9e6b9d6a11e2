//! Tests of the documents: every code block is compiled, run, parsed or checked, and generated
//! documents are compared with the code. `blocks.rs` describes the tags of code blocks.

mod approvals;
mod blocks;
mod compile;
mod configuration;
mod data;
mod dry_run;
mod inline;
mod masks;
mod postgres;
mod refunds;
mod roles;
mod session;
mod source;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("there is a root")
}
