//! temporary
pub mod exit;
pub mod output;
