//! The artifacts of a running task. Each knows its state at the last checkpoint, so a lost
//! attempt can be undone without a copy of everything. Pure.

use faultline_chassis::limits;
use faultline_proto::{a2a::Artifact, v1::ArtifactWritten};
use prost::Message;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Artifacts {
    entries: Vec<Entry>,
    bytes: usize,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    artifact: Artifact,
    kept: Kept,
}

/// How an artifact stood at the last checkpoint.
#[derive(Clone, Debug, PartialEq)]
enum Kept {
    /// It was not there.
    Nothing,
    /// Its first parts, so many of them.
    Prefix(usize),
    /// As it is here: it was replaced since.
    Copy(Box<Artifact>),
}

/// The task would hold more than one task may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

impl Artifacts {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Artifact> {
        self.entries.iter().map(|e| &e.artifact)
    }

    pub(crate) fn into_vec(self) -> Vec<Artifact> {
        self.entries.into_iter().map(|e| e.artifact).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn find(&self, id: &str) -> Option<usize> {
        self.entries.iter().position(|e| e.artifact.artifact_id == id)
    }

    /// Is there room, and is an append really one? An attempt's first write to an artifact that is
    /// not there replaces.
    pub(crate) fn admit(&self, write: &ArtifactWritten) -> Result<bool, TooLarge> {
        let artifact = write.artifact.as_ref();
        let found = artifact.and_then(|a| self.find(&a.artifact_id));
        let exists = found.is_some();
        let replaced = found.filter(|_| !write.append).map(|at| &self.entries[at].artifact);
        let kept = self.bytes.saturating_sub(replaced.map_or(0, Message::encoded_len));
        let grown = kept + artifact.map_or(0, Message::encoded_len);
        let full = !exists && self.entries.len() >= limits::TASK_ARTIFACTS_MAX;
        match grown > limits::TASK_ARTIFACT_BYTES_MAX || full {
            true => Err(TooLarge),
            false => Ok(write.append && exists),
        }
    }

    pub(crate) fn write(&mut self, write: &ArtifactWritten) {
        let Some(artifact) = &write.artifact else { return };
        self.bytes += artifact.encoded_len();
        match self.find(&artifact.artifact_id) {
            Some(at) if write.append => {
                self.entries[at].artifact.parts.extend(artifact.parts.iter().cloned());
            }
            Some(at) => {
                let entry = &mut self.entries[at];
                self.bytes -= entry.artifact.encoded_len().min(self.bytes);
                let old = std::mem::replace(&mut entry.artifact, artifact.clone());
                if let Kept::Prefix(parts) = entry.kept {
                    let mut copy = old;
                    copy.parts.truncate(parts);
                    entry.kept = Kept::Copy(Box::new(copy));
                }
            }
            None => self.entries.push(Entry { artifact: artifact.clone(), kept: Kept::Nothing }),
        }
    }

    pub(crate) fn checkpoint(&mut self) {
        for entry in &mut self.entries {
            entry.kept = Kept::Prefix(entry.artifact.parts.len());
        }
    }

    /// Goes back to the last checkpoint.
    pub(crate) fn rewind(&mut self) {
        self.entries.retain_mut(|entry| match &mut entry.kept {
            Kept::Nothing => false,
            Kept::Prefix(parts) => {
                entry.artifact.parts.truncate(*parts);
                true
            }
            Kept::Copy(old) => {
                entry.artifact = std::mem::take(old);
                entry.kept = Kept::Prefix(entry.artifact.parts.len());
                true
            }
        });
        self.bytes = self.iter().map(Message::encoded_len).sum();
    }

    /// The artifacts that a rewind changes and keeps, as of the checkpoint. Watchers get them
    /// before a new attempt starts.
    pub(crate) fn rewound(&self) -> Vec<ArtifactWritten> {
        let changed = self.entries.iter().filter_map(|entry| match &entry.kept {
            Kept::Prefix(parts) if entry.artifact.parts.len() > *parts => {
                let mut artifact = entry.artifact.clone();
                artifact.parts.truncate(*parts);
                Some(artifact)
            }
            Kept::Copy(old) => Some((**old).clone()),
            Kept::Nothing | Kept::Prefix(_) => None,
        });
        let resend = |artifact| ArtifactWritten {
            artifact: Some(artifact),
            append: false,
            last_chunk: false,
        };
        changed.map(resend).collect()
    }
}
