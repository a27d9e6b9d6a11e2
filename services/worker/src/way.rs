//! The way to the coordinator that this worker is attached to, for what agents ask of other agents.
//! It changes with every attachment: whoever keeps a connection instead asks somebody who left.

use faultline_chassis::client::Channel;
use parking_lot::RwLock;

pub(crate) struct Way(RwLock<Channel>);

impl Way {
    pub(crate) fn new(channel: Channel) -> Self {
        Self(RwLock::new(channel))
    }

    /// For one call.
    pub(crate) fn now(&self) -> Channel {
        self.0.read().clone()
    }

    /// Leads there from now on. Calls that are under way go on where they are.
    pub(crate) fn lead(&self, channel: Channel) {
        *self.0.write() = channel;
    }
}
