//! The built-in agents by name: `echo` and `script`.
//!
//! May use: sdk.

use crate::Offer;

pub mod echo;
pub mod script;

/// All names that [`built_in`] knows.
pub const NAMES: [&str; 2] = ["echo", "script"];

/// The built-in agent of this name. `drills`: whether its fault injection may harm the worker.
pub fn built_in(name: &str, drills: bool) -> Option<Offer> {
    match name {
        "echo" => Some(echo::offer()),
        "script" => Some(script::offer(drills)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_an_agent() {
        for name in NAMES {
            assert_eq!(built_in(name, false).unwrap().name(), name);
        }
    }
}
