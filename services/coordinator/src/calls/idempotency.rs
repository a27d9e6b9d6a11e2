//! Idempotency keys that are on their way to the store. The first send with a key claims it; a
//! second one waits until the key is durable and then finds it in the store, or claims it if
//! the first was rejected.

use std::{collections::HashMap, sync::Arc};

use faultline_proto::{
    a2a::{SendMessageConfiguration, SendMessageRequest},
    id::TaskId,
};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use prost_types::Struct;
use ring::digest::{SHA256, digest};
use tokio::sync::watch;

use crate::{
    error::Error,
    store::{Digest, KeyName, KeyRow},
    task::Millis,
};

/// Metadata of a send that may differ when it is repeated.
const INCIDENTAL: [&str; 4] = [
    "traceparent",
    "faultline.dev/traceparent",
    "faultline.dev/timeoutMs",
    "faultline.dev/idempotencyKey",
];

/// The keys that are on their way to the store.
#[derive(Clone, Default)]
pub(crate) struct KeyClaims(Arc<Mutex<HashMap<KeyName, HeldKey>>>);

struct HeldKey {
    digest: Digest,
    released: watch::Receiver<()>,
}

/// Keeps a key until it is durable, or until it turns out that it will not be.
pub(crate) struct KeyClaim {
    claims: KeyClaims,
    name: KeyName,
    digest: Digest,
    /// Dropped with the claim; other sends with the key wait for that.
    _holds: watch::Sender<()>,
}

impl KeyClaims {
    /// Waits until the key is free. The same key with another digest is rejected at once.
    pub(crate) async fn claim(&self, name: KeyName, digest: Digest) -> Result<KeyClaim, Error> {
        loop {
            let mut released = match self.try_claim(&name, digest) {
                Ok(claim) => return Ok(claim),
                Err(held) if held.digest != digest => return Err(Error::KeyReused(name.key)),
                Err(held) => held.released,
            };
            // An error means that the other claim was dropped.
            let _ = released.changed().await;
        }
    }

    fn try_claim(&self, name: &KeyName, digest: Digest) -> Result<KeyClaim, HeldKey> {
        let mut held = self.lock();
        if let Some(HeldKey { digest, released }) = held.get(name) {
            return Err(HeldKey { digest: *digest, released: released.clone() });
        }
        let (holds, released) = watch::channel(());
        held.insert(name.clone(), HeldKey { digest, released });
        Ok(KeyClaim { claims: self.clone(), name: name.clone(), digest, _holds: holds })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyName, HeldKey>> {
        self.0.lock()
    }
}

impl KeyClaim {
    /// The row that is stored in the same transaction as the step of the send.
    pub(crate) fn row(&self, task_id: TaskId, now: Millis) -> KeyRow {
        let (name, digest) = (self.name.clone(), self.digest);
        KeyRow { name, task_id, digest, reply: None, created: now }
    }
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.name);
    }
}

/// Of what was sent, without what a repeat may say differently. Maps are sorted by their keys, so
/// equal requests have equal bytes.
pub(crate) fn digest_of(request: &SendMessageRequest) -> Digest {
    let mut request = request.clone();
    // The agent is part of the key's name, under whichever address it was called.
    request.tenant.clear();
    strip(&mut request.metadata);
    request.configuration = request.configuration.take().and_then(without_delivery);
    if let Some(message) = &mut request.message {
        strip(&mut message.metadata);
    }
    let hash = digest(&SHA256, &request.encode_to_vec());
    let mut digest = Digest::default();
    digest.copy_from_slice(hash.as_ref());
    digest
}

/// The configuration without the fields that say how the answer is delivered. The accepted media
/// types stay, because the work of the agent depends on them, and so does the webhook, which a
/// repeat does not register.
fn without_delivery(configuration: SendMessageConfiguration) -> Option<SendMessageConfiguration> {
    let rest = SendMessageConfiguration {
        return_immediately: false,
        history_length: None,
        ..configuration
    };
    Some(rest).filter(|rest| *rest != SendMessageConfiguration::default())
}

fn strip(metadata: &mut Option<Struct>) {
    if let Some(metadata) = metadata {
        metadata.fields.retain(|name, _| !INCIDENTAL.contains(&name.as_str()));
    }
    *metadata = metadata.take().filter(|metadata| !metadata.fields.is_empty());
}

#[cfg(test)]
mod tests;
