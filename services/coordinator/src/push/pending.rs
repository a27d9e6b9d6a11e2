//! A write of a webhook configuration on its way to the store.

use tokio::sync::oneshot;

use crate::{
    cluster::remote_write::contended,
    engine::{
        core::State,
        effect::{Effect, WriteResult},
    },
    error::Error,
    store::{PushWrite, Write},
};

pub(super) struct Pending(oneshot::Receiver<WriteResult>);

impl Pending {
    pub(super) fn queue(state: &mut State, write: PushWrite) -> Self {
        let (receipt, written) = oneshot::channel();
        state.commit_write(Write::Push(write), vec![Effect::Receipt(receipt)]);
        Self(written)
    }

    pub(super) async fn durable(self) -> Result<(), Error> {
        match self.0.await {
            Ok(WriteResult::Done) => Ok(()),
            Ok(WriteResult::Conflict) => Err(contended()),
            Ok(WriteResult::Unknown(failure)) => Err(failure.into()),
            Err(_) => Err(Error::unanswered()),
        }
    }
}
