//! The limits of a coordinator's port that apply before authentication, as configured.

use faultline_chassis::{
    limits,
    server::{Bounds, Quotas, Resource},
};

use crate::{Config, Error, server::keda};

/// The paths that need no credential, and the bytes that a request to each may have: its message,
/// and the five bytes that gRPC puts before it.
pub(crate) const OPEN: &[(&str, usize)] = &[
    ("/grpc.health.v1.Health/", limits::HEALTH_BYTES_MAX + 5),
    (keda::PATH, limits::SCALER_BYTES_MAX + 5),
];

impl Config {
    pub(crate) fn bounds(&self) -> Result<Bounds, Error> {
        let each = [
            ("connections_per_address_max", self.connections_per_address_max),
            ("health_watches_per_address_max", self.health_watches_per_address_max),
            ("scaler_streams_per_address_max", self.scaler_streams_per_address_max),
        ];
        if let Some((key, _)) = each.into_iter().find(|(_, value)| *value == 0) {
            let what = "nobody could ask; leave it out for the default";
            return Err(Error::Setting { key, value: 0, what });
        }
        let [(_, connections), (_, watches), (_, streams)] = each;
        let limits = Quotas::default()
            .with(Resource::Connection, connections, limits::CONNECTIONS_MAX)
            .with(Resource::HealthWatch, watches, limits::HEALTH_WATCHES_MAX)
            .with(
                Resource::BufferedBytes,
                limits::HEAD_BYTES_PER_ADDRESS_MAX,
                limits::HEAD_BYTES_MAX,
            )
            .with(
                Resource::MessageBytes,
                limits::MESSAGE_BUDGET_PER_ADDRESS_BYTES,
                limits::MESSAGE_BUDGET_BYTES,
            )
            .with(
                Resource::WindowBytes,
                limits::MESH_WINDOWS_PER_ADDRESS_BYTES,
                limits::MESH_WINDOWS_BYTES,
            )
            .with(Resource::ScalerStream, streams, limits::SCALER_STREAMS_MAX)
            .with(
                Resource::UnauthenticatedCall,
                limits::OPEN_CALLS_PER_ADDRESS_MAX,
                limits::OPEN_CALLS_MAX,
            )
            .with(
                Resource::Stream,
                limits::MESH_STREAMS_OPEN_PER_ADDRESS_MAX,
                limits::MESH_STREAMS_OPEN_MAX,
            )
            .with(
                Resource::UnreadBytes,
                limits::UNREAD_BYTES_PER_ADDRESS_MAX,
                limits::UNREAD_BYTES_MAX,
            );
        // Members of the mesh have a stream open all the time.
        Ok(Bounds {
            limits,
            connection_bytes: limits::MESSAGE_BUDGET_PER_CONNECTION_BYTES,
            idle: Some(limits::IDLE_CONNECTION),
            windows: (limits::MESH_STREAM_WINDOW_BYTES, limits::MESH_CONNECTION_WINDOW_BYTES),
            ..Bounds::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_unauthenticated_connections_are_closed() {
        let bounds = Config::default().bounds().unwrap();
        assert_eq!(bounds.idle, Some(limits::IDLE_CONNECTION));
    }
}
