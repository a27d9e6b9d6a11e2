//! Admission control of a gateway's port before authentication: the configured limits per address
//! and in total.

use std::time::Duration;

use faultline_chassis::{
    limits::{self, BODY_BUDGET_BYTES_MIN},
    server::{Bounds, Quotas, Resource},
};

use crate::{Config, Error};

const MIB: usize = 1024 * 1024;

impl Config {
    pub(crate) fn bounds(&self) -> Result<Bounds, Error> {
        let at_least_one = "no client could be served; leave it out for the default";
        for (key, value) in [
            ("connections_per_address_max", self.connections_per_address_max),
            ("health_watches_per_address_max", self.health_watches_per_address_max),
            ("calls_per_caller_max", self.calls_per_caller_max),
        ] {
            if value == 0 {
                return Err(Error::Setting { key, value: 0, what: at_least_one });
            }
        }
        if self.idle_connection_ms == 0 {
            let what = "every connection would be closed at once; leave it out for the default";
            return Err(Error::Setting { key: "idle_connection_ms", value: 0, what });
        }
        let budget = self.body_budget_mib.saturating_mul(MIB);
        if budget < BODY_BUDGET_BYTES_MIN {
            let key = "body_budget_mib";
            let value = self.body_budget_mib as u64;
            let what =
                "a quarter of it is for one connection and must hold one body: set 48 or more";
            return Err(Error::Setting { key, value, what });
        }
        // Each call of a caller may need a stream, so the stream limits are at least as high.
        let streams = limits::STREAMS_OPEN_PER_ADDRESS_MAX.max(self.calls_per_caller_max);
        let limits = Quotas::default()
            .with(Resource::Connection, self.connections_per_address_max, limits::CONNECTIONS_MAX)
            .with(Resource::BufferedBytes, budget / 2, budget)
            .with(Resource::Call, self.calls_per_caller_max, usize::MAX)
            .with(
                Resource::HealthWatch,
                self.health_watches_per_address_max,
                limits::HEALTH_WATCHES_MAX,
            )
            .with(
                Resource::CardFetch,
                limits::CARD_FETCHES_PER_ADDRESS_MAX,
                limits::CARD_FETCHES_MAX,
            )
            .with(Resource::Stream, streams, limits::STREAMS_OPEN_MAX.max(streams))
            .with(
                Resource::UnreadBytes,
                limits::UNREAD_BYTES_PER_ADDRESS_MAX,
                limits::UNREAD_BYTES_MAX,
            )
            .exempt(self.trusted_proxies.clone());
        let idle = Duration::from_millis(self.idle_connection_ms);
        Ok(Bounds::public(limits, budget / 4, idle))
    }
}
