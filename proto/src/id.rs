//! Ids and names. Ids made by the mesh are UUIDv7: they sort by time, and rows written together lie
//! together. Agents have names chosen by people, within a rule.

use std::{fmt, str::FromStr};

use uuid::Uuid;

/// The text is not an id of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id.
            #[allow(clippy::new_without_default)]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(text: &str) -> Result<Self, NotAnId> {
                // Only the lower-case hyphenated form is accepted: one task must not have several
                // ids.
                let ours = text.len() == 36 && !text.bytes().any(|b| b.is_ascii_uppercase());
                let id = Uuid::try_parse(text).ok().filter(|_| ours);
                id.map(Self).ok_or(NotAnId)
            }
        }
    };
}

id!(
    /// The id of a task, globally unique.
    TaskId
);
impl TaskId {
    /// The creation time in milliseconds since 1970, from the first bytes of the UUIDv7.
    pub fn made_at(&self) -> i64 {
        self.as_bytes()[..6].iter().fold(0, |ms, byte| ms << 8 | i64::from(*byte))
    }
}

id!(
    /// The id of one run of a worker process.
    WorkerId
);

/// Names reserved for present and future paths of the gateway.
const RESERVED: [&str; 8] =
    ["agents", "tasks", "message", "v1", "mesh", "console", "metrics", "healthz"];
const AGENT_NAME_BYTES_MAX: usize = 63;

/// The reason for which a name cannot be an agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadAgentName {
    Illegal(String),
    Reserved(String),
}

impl fmt::Display for BadAgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Illegal(name) => {
                write!(f, "'{name}' cannot name an agent: it takes [a-z][a-z0-9-]{{0,62}}")
            }
            Self::Reserved(name) => {
                write!(f, "'{name}' cannot name an agent: the gateway keeps it for its paths")
            }
        }
    }
}

impl std::error::Error for BadAgentName {}

/// The prefix of the mesh's own principals. No caller has a name with it.
pub const OWN_PRINCIPALS: &str = "faultline.dev/";

/// Whether the principal is one of the mesh's own.
pub fn is_own_principal(name: &str) -> bool {
    name.starts_with(OWN_PRINCIPALS)
}

/// Checks that a name fits a URL path and a DNS label.
pub fn check_agent_name(name: &str) -> Result<(), BadAgentName> {
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let fits = name.len() <= AGENT_NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(legal);
    match (fits, RESERVED.contains(&name)) {
        (false, _) => Err(BadAgentName::Illegal(name.to_owned())),
        (true, true) => Err(BadAgentName::Reserved(name.to_owned())),
        (true, false) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_name_fits_a_url_path() {
        let long = "a".repeat(AGENT_NAME_BYTES_MAX + 1);
        for bad in ["", "1a", "-a", "Echo", "a_b", "é", &long] {
            let illegal = Err(BadAgentName::Illegal(bad.to_owned()));
            assert_eq!(check_agent_name(bad), illegal);
        }
        for name in RESERVED {
            assert_eq!(check_agent_name(name), Err(BadAgentName::Reserved(name.to_owned())));
        }
        for good in ["a", "my-agent-2", &long[1..]] {
            assert_eq!(check_agent_name(good), Ok(()));
        }
    }

    #[test]
    fn task_id_contains_its_time() {
        let id: TaskId = "01a1e5fc-69f8-77c1-ad9b-e7794fa9d0c8".parse().unwrap();
        assert_eq!(id.made_at(), 0x01a1_e5fc_69f8);
    }

    #[test]
    fn id_round_trips_in_one_spelling_only() {
        let id = TaskId::new();
        assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
        assert!(id.to_string().to_uppercase().parse::<TaskId>().is_err());
        assert!(id.to_string().replace('-', "").parse::<TaskId>().is_err());
        assert!("".parse::<TaskId>().is_err());
    }
}
