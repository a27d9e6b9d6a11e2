//! Ids that the mesh makes. Both are UUIDv7, so they sort by the time they were made and rows that
//! are written together lie together.

use std::{fmt, str::FromStr};

use uuid::Uuid;

/// The text is not an id the mesh could have made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// A fresh one.
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
                // Only the lower-case hyphenated form: one task must not have several names.
                let ours = text.len() == 36 && !text.bytes().any(|b| b.is_ascii_uppercase());
                let id = Uuid::try_parse(text).ok().filter(|_| ours);
                id.map(Self).ok_or(NotAnId)
            }
        }
    };
}

id!(
    /// Names a task, everywhere and for ever.
    TaskId
);
id!(
    /// Names one life of one worker process.
    WorkerId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_in_its_one_spelling_only() {
        let id = TaskId::new();
        assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
        assert!(id.to_string().to_uppercase().parse::<TaskId>().is_err());
        assert!(id.to_string().replace('-', "").parse::<TaskId>().is_err());
        assert!("".parse::<TaskId>().is_err());
    }
}
