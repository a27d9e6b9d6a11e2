//! Signatures of agent cards: JWS over the canonical JSON of a card, with one key.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL};
use faultline_proto::{
    a2a::{AgentCard, AgentCardSignature},
    json,
};
use ring::{
    digest::{self, SHA256},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair},
};
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::{Value, json};

use crate::cards::canonical_json;

/// Cached signatures: one per card and public URL. Only URLs from the Host header can be many.
const CACHE_MAX: usize = 256;

/// The reason for which cards cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum BadKey {
    #[error("cannot read gateway.card_key '{}'", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "gateway.card_key '{}' is no PKCS#8 key of EC P-256 or Ed25519 in PEM (create one with \
         'openssl genpkey -algorithm ed25519')", path.display()
    )]
    Kind { path: PathBuf },
    #[error("gateway.card_key needs gateway.card_key_id, by which verifiers find the public key")]
    NoId,
    #[error("gateway.card_key_id needs a key: set gateway.card_key too")]
    NoKey,
}

/// Signs cards with one key.
pub(crate) struct Signer {
    key: Key,
    /// The protected header as it is sent and signed.
    protected: String,
    /// By the digest of the card, oldest first. ECDSA signatures are random, and an unchanged card
    /// must keep its bytes for caches.
    cache: Mutex<VecDeque<(Vec<u8>, Vec<AgentCardSignature>)>>,
}

impl Signer {
    /// `None` with neither key nor id: cards are not signed.
    pub(crate) fn load(key: Option<&Path>, id: Option<&str>) -> Result<Option<Self>, BadKey> {
        let (path, id) = match (key, id.filter(|id| !id.is_empty())) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(BadKey::NoKey),
            (Some(_), None) => return Err(BadKey::NoId),
            (Some(path), Some(id)) => (path, id),
        };
        let read = |source| BadKey::Read { path: path.to_owned(), source };
        let pem = fs::read(path).map_err(read)?;
        let key = Key::from_pem(&pem).ok_or_else(|| BadKey::Kind { path: path.to_owned() })?;
        Ok(Some(Self::new(key, id)))
    }

    fn new(key: Key, id: &str) -> Self {
        let header = json!({"alg": key.algorithm(), "kid": id, "typ": "JOSE"});
        let protected = BASE64URL.encode(canonical_json::canonical(&header));
        Self { key, protected, cache: Mutex::default() }
    }

    /// The signatures for a card that is otherwise complete.
    pub(crate) fn sign(&self, card: &AgentCard) -> Vec<AgentCardSignature> {
        let unsigned = json::to_vec(card);
        let digest = digest::digest(&SHA256, &unsigned).as_ref().to_vec();
        let mut cache = self.cache.lock();
        if let Some((_, signatures)) = cache.iter().find(|(known, _)| *known == digest) {
            return signatures.clone();
        }
        let signatures: Vec<_> =
            payloads(&unsigned).iter().map(|payload| self.signature(payload)).collect();
        if cache.len() == CACHE_MAX {
            cache.pop_front();
        }
        cache.push_back((digest, signatures.clone()));
        signatures
    }

    fn signature(&self, payload: &[u8]) -> AgentCardSignature {
        let input = format!("{}.{}", self.protected, BASE64URL.encode(payload));
        AgentCardSignature {
            protected: self.protected.clone(),
            signature: BASE64URL.encode(self.key.sign(input.as_bytes())),
            header: None,
        }
    }
}

/// The payloads to sign. The specification keeps required fields that are empty; the official SDKs
/// drop all empty fields. A verifier needs one matching signature, so a card for which the two
/// differ gets both, first the one of the SDKs.
fn payloads(unsigned: &[u8]) -> Vec<Vec<u8>> {
    let card: Value = serde_json::from_slice(unsigned).expect("ProtoJSON is JSON");
    let specified = canonical_json::canonical(&card);
    let usual = canonical_json::canonical(&without_empty(card).unwrap_or_else(|| json!({})));
    if usual == specified { vec![usual] } else { vec![usual, specified] }
}

/// The value without empty fields and elements.
fn without_empty(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then_some(Value::String(text)),
        Value::Array(values) => {
            let full: Vec<_> = values.into_iter().filter_map(without_empty).collect();
            (!full.is_empty()).then_some(Value::Array(full))
        }
        Value::Object(fields) => {
            let full = fields.into_iter().filter_map(|(k, v)| Some((k, without_empty(v)?)));
            let full: serde_json::Map<_, _> = full.collect();
            (!full.is_empty()).then_some(Value::Object(full))
        }
        plain @ (Value::Bool(_) | Value::Number(_)) => Some(plain),
    }
}

enum Key {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Key {
    fn from_pem(pem: &[u8]) -> Option<Self> {
        let key = PrivatePkcs8KeyDer::from_pem_slice(pem).ok()?;
        let der = key.secret_pkcs8_der();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(algorithm, der, &SystemRandom::new()) {
            return Some(Key::P256(pair));
        }
        // OpenSSL writes Ed25519 keys without the public half, which is computed here.
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok().map(Key::Ed25519)
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Key::P256(_) => "ES256",
            Key::Ed25519(_) => "EdDSA",
        }
    }

    fn sign(&self, input: &[u8]) -> Vec<u8> {
        match self {
            Key::P256(pair) => {
                let signed = pair.sign(&SystemRandom::new(), input);
                signed.expect("the system has random bytes").as_ref().to_vec()
            }
            Key::Ed25519(pair) => pair.sign(input).as_ref().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
