//! A write on its way to the store, for whoever must not go on before it is durable.

use faultline_proto::{Failure, a2a::SendMessageResponse};
use tokio::sync::oneshot;

use crate::{
    engine::{active_task::Done, core::State, effect::Effect},
    error::Error,
    store::{PushWrite, Write},
};

pub(super) struct Pending(oneshot::Receiver<Result<SendMessageResponse, Failure>>);

impl Pending {
    pub(super) fn queue(state: &mut State, write: PushWrite) -> Self {
        let (done, written) = oneshot::channel();
        let done: Done = Box::new(move |answer| drop(done.send(answer)));
        state.commit_write(Write::Push(write), vec![Effect::Answer(done, Box::default())]);
        Self(written)
    }

    pub(super) async fn durable(self) -> Result<(), Error> {
        self.0.await.unwrap_or_else(|_| Err(Error::unanswered().into()))?;
        Ok(())
    }
}
