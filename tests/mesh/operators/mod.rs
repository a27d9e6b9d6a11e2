//! Operator views and actions: agent cards, lists, watches, cancel and answer, KEDA.

mod discovery;
pub(crate) mod keda;
mod queries;
