//! How long one outgoing call may take, layer by layer. None of it bounds a task: a task goes on
//! when the call that started it is given up.

use std::time::Duration;

use faultline_proto::reason;
use tokio::time::timeout;

use crate::{protocol::wire_error::timeout_failure, transport::retry::Fault};

/// The patience with one call. Each layer has a reason of its own, and none of them: it waits for
/// ever. A stream has no `total`: it lasts as long as its bytes come.
///
/// ```
/// use std::time::Duration;
/// use faultline_client::Timeouts;
///
/// // For an agent that thinks for long before it says its first word.
/// let patient = Timeouts { read: Some(Duration::from_secs(120)), ..Timeouts::default() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection, encrypted if it is to be. `CONNECT_TIMEOUT`.
    pub connect: Option<Duration>,
    /// While the connection takes no bytes and some of the request wait. `WRITE_TIMEOUT`.
    pub write: Option<Duration>,
    /// Until fewer than [`crate::Builder::max_calls`] are under way. `POOL_TIMEOUT`.
    pub pool: Option<Duration>,
    /// From the end of the request to the first byte of the answer, and between two of them; a
    /// comment on a stream of events is such bytes too. `READ_TIMEOUT`. On gRPC a stream that has
    /// begun is watched by the pings of its connection instead, as there are no comments.
    pub read: Option<Duration>,
    /// All of it together, unless the answer is a stream. `CALL_TIMEOUT`.
    pub total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Some(Duration::from_secs(5)),
            write: Some(Duration::from_secs(5)),
            pool: Some(Duration::from_secs(10)),
            read: Some(Duration::from_secs(60)),
            total: Some(Duration::from_secs(90)),
        }
    }
}

impl Timeouts {
    /// Waits for ever, on every layer.
    pub fn none() -> Self {
        Self { connect: None, write: None, pool: None, read: None, total: None }
    }
}

/// What is waited for, as far as the client itself holds the clock. The connector holds the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Pool,
    Read,
    Total,
}

impl Layer {
    /// What it means that the time ran out.
    pub(crate) fn ran_out(self, after: Duration) -> Fault {
        match self {
            Layer::Pool => {
                let text = format!("no call could be begun within {after:?}");
                Fault::unsent(timeout_failure(&reason::POOL_TIMEOUT, text))
            }
            Layer::Read => {
                let text = format!("the server was silent for {after:?}");
                Fault::lost(timeout_failure(&reason::READ_TIMEOUT, text))
            }
            Layer::Total => {
                let text = format!("the call did not come to an end within {after:?}");
                Fault::lost(timeout_failure(&reason::CALL_TIMEOUT, text))
            }
        }
    }

    /// Does `work` for no longer than `limit`.
    pub(crate) async fn bound<T>(
        self,
        limit: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> Result<T, Fault> {
        match limit {
            None => Ok(work.await),
            Some(limit) => timeout(limit, work).await.map_err(|_| self.ran_out(limit)),
        }
    }
}
