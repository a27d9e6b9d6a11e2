//! The built-in agents, by name.

use crate::Offer;

pub mod echo;
pub mod script;

/// Every name that [`built_in`] knows.
pub const NAMES: [&str; 2] = ["echo", "script"];

/// The built-in agent of this name. `drills`: whether it may harm its worker when it is told to.
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
    fn every_name_has_its_agent() {
        for name in NAMES {
            assert_eq!(built_in(name, false).unwrap().name(), name);
        }
    }
}
