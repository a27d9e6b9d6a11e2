//! A configured secret, sent to a peer on purpose and never shown by accident: it prints as
//! stars and is never serialised.

use std::fmt;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, de};
use subtle::ConstantTimeEq;

/// A bearer token.
#[derive(Clone)]
pub struct Secret(String);

/// The text cannot be sent as a bearer token. The error does not contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is one or more visible ASCII characters, without spaces")]
pub struct NotASecret;

impl Secret {
    pub fn new(text: impl Into<String>) -> Result<Self, NotASecret> {
        let text = text.into();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Self(text))
        } else {
            Err(NotASecret)
        }
    }

    /// A random token.
    pub fn random() -> Self {
        Self(rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The only access to the text.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares digests, so that the time taken reveals neither the length nor a matching prefix.
    pub fn matches(&self, candidate: &[u8]) -> bool {
        let digest = |bytes: &[u8]| digest(&SHA256, bytes);
        digest(self.0.as_bytes()).as_ref().ct_eq(digest(candidate).as_ref()).into()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.0.as_bytes())
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Serde's own error would quote a token that lacks its quotes.
        let text = String::deserialize(deserializer).map_err(|_| de::Error::custom(NotASecret))?;
        Self::new(text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Config {
        token: Secret,
    }

    #[test]
    fn secret_is_deserialised_and_never_printed() {
        let config: Config = toml::from_str("token = 'hunter2'").unwrap();
        assert_eq!(config.token.reveal(), "hunter2");
        assert_eq!(format!("{config:?} {}", config.token), "Config { token: *** } ***");
        assert!(config.token.matches(b"hunter2"));
        assert!(!config.token.matches(b"hunter") && !config.token.matches(b"hunter22"));
    }

    #[test]
    fn random_secret_is_unique_and_a_valid_bearer_token() {
        let made = Secret::random();
        assert_eq!(Secret::new(made.reveal()).unwrap(), made);
        assert_ne!(Secret::random(), made);
    }

    #[test]
    fn invalid_secret_is_refused_without_being_quoted() {
        for bad in ["''", "'two words'", "\"line\\n\"", "'schlüssel'", "424242", "['x']"] {
            let error = toml::from_str::<Config>(&format!("token = {bad}")).unwrap_err();
            assert_eq!(error.message(), NotASecret.to_string(), "{bad}");
        }
    }
}
