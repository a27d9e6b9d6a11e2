//! The way to the coordinator that this worker is attached to, for what agents ask of other agents.
//! It changes when the worker goes to another one: whoever keeps a connection instead asks somebody
//! who left.

use faultline_chassis::{client::Channel, members::Member};
use tokio::sync::watch;

pub(crate) struct CoordinatorChannel(watch::Sender<(Option<Member>, Channel)>);

impl CoordinatorChannel {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(watch::Sender::new((None, channel)))
    }

    /// For one call.
    pub(crate) fn current(&self) -> Channel {
        self.0.borrow().1.clone()
    }

    /// Leads there from now on.
    pub(crate) fn switch_to(&self, member: &Member, channel: Channel) {
        self.0.send_if_modified(|current| {
            let is_other = current.0.as_ref() != Some(member);
            if is_other {
                *current = (Some(member.clone()), channel);
            }
            is_other
        });
    }

    /// Returns when it leads elsewhere than when this was called.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + use<> {
        let mut current = self.0.subscribe();
        async move {
            if current.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
