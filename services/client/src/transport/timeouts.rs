//! Timeouts of one call, layer by layer. None of them limits a task: the task continues after the
//! call that started it has timed out.

use std::time::Duration;

use faultline_proto::reason;
use tokio::time::timeout;

use crate::{protocol::wire_error::timeout_failure, transport::retry::Fault};

/// The timeouts of one call. Each layer has its own reason; `None` disables it. A stream has no
/// `total`: it lasts as long as bytes arrive.
///
/// ```
/// use std::time::Duration;
/// use faultline_client::Timeouts;
///
/// // For an agent that computes for long before its first byte.
/// let patient = Timeouts { read: Some(Duration::from_secs(120)), ..Timeouts::default() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit for the connection, including TLS. `CONNECT_TIMEOUT`.
    pub connect: Option<Duration>,
    /// Limit for a connection that takes no bytes of the request. `WRITE_TIMEOUT`.
    pub write: Option<Duration>,
    /// Limit for the wait until fewer than [`crate::Builder::max_calls`] calls are running.
    /// `POOL_TIMEOUT`.
    pub pool: Option<Duration>,
    /// Limit from the end of the request to the first byte of the response, and between two bytes;
    /// comments on an event stream count as bytes. `READ_TIMEOUT`. On gRPC, HTTP/2 pings watch a
    /// stream that has begun, because it has no comments.
    pub read: Option<Duration>,
    /// Limit for the whole call, unless the response is a stream. `CALL_TIMEOUT`.
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
    /// No limit on any layer.
    pub fn none() -> Self {
        Self { connect: None, write: None, pool: None, read: None, total: None }
    }
}

/// The layers that the client itself times. The connector times the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Pool,
    Read,
    Total,
}

impl Layer {
    /// The fault of an expired layer.
    pub(crate) fn ran_out(self, after: Duration) -> Fault {
        match self {
            Layer::Pool => {
                let text = format!("no call could be started within {after:?}");
                Fault::unsent(timeout_failure(&reason::POOL_TIMEOUT, text))
            }
            Layer::Read => {
                let text = format!("the server sent nothing for {after:?}");
                Fault::lost(timeout_failure(&reason::READ_TIMEOUT, text))
            }
            Layer::Total => {
                let text = format!("the call did not end within {after:?}");
                Fault::lost(timeout_failure(&reason::CALL_TIMEOUT, text))
            }
        }
    }

    /// Runs `work` within `limit`.
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
