//! The way to the coordinator that this worker is attached to, for what agents ask of other agents.
//! It changes when the worker goes to another one: whoever keeps a connection instead asks somebody
//! who left.

use faultline_chassis::{client::Channel, members::Member};
use tokio::sync::watch;

pub(crate) struct Way(watch::Sender<(Option<Member>, Channel)>);

impl Way {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(watch::Sender::new((None, channel)))
    }

    /// For one call.
    pub(crate) fn now(&self) -> Channel {
        self.0.borrow().1.clone()
    }

    /// Leads there from now on.
    pub(crate) fn lead(&self, member: &Member, channel: Channel) {
        self.0.send_if_modified(|now| {
            let is_new = now.0.as_ref() != Some(member);
            if is_new {
                *now = (Some(member.clone()), channel);
            }
            is_new
        });
    }

    /// Returns when it leads elsewhere than when this was called.
    pub(crate) fn moved(&self) -> impl Future<Output = ()> + use<> {
        let mut now = self.0.subscribe();
        async move {
            if now.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
