//! The gRPC channel for delegations, always to the coordinator that the worker is attached to. Each
//! call takes the current channel: a channel that was kept would call a coordinator that the worker
//! has left.

use faultline_chassis::{client::Channel, members::Member};
use tokio::sync::watch;

/// One per worker. Written by the connection on each welcome, read by every attempt.
pub(crate) struct CoordinatorChannel(watch::Sender<(Option<Member>, Channel)>);

impl CoordinatorChannel {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(watch::Sender::new((None, channel)))
    }

    /// The channel for one call.
    pub(crate) fn current(&self) -> Channel {
        self.0.borrow().1.clone()
    }

    /// Replaces the channel if the worker is now attached to another coordinator.
    pub(crate) fn switch_to(&self, member: &Member, channel: Channel) {
        self.0.send_if_modified(|current| {
            let is_other = current.0.as_ref() != Some(member);
            if is_other {
                *current = (Some(member.clone()), channel);
            }
            is_other
        });
    }

    /// Returns when the channel is replaced after this method was called.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + use<> {
        let mut current = self.0.subscribe();
        async move {
            if current.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
