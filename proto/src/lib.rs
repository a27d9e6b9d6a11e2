//! The contract of the mesh: every message between processes, every reason for which a call or task
//! can fail, and the only conversions of a failure to a `tonic::Status` and to JSON. It knows no
//! service.

pub mod advice;
pub mod allocation;
pub mod answer;
pub mod codec;
pub mod disposition;
pub mod failure;
pub mod id;
pub mod json;
pub mod reason;
pub mod request_options;
pub mod schema;
pub mod status;
pub mod task_failure;
pub mod v03;

pub use failure::Failure;
pub use faultline::v1;
pub use lf::a2a::v1 as a2a;

/// KEDA's external scaler protocol.
#[allow(clippy::all, unreachable_pub)]
pub mod keda {
    tonic::include_proto!("externalscaler");
}

/// The encoded descriptor set of all packages, with their custom options.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

#[allow(clippy::all)]
mod layouts {
    include!(concat!(env!("OUT_DIR"), "/allocation.rs"));
}

// Generated code refers to other packages by path, so the modules are nested like the packages.
#[allow(clippy::all, unreachable_pub)]
mod lf {
    pub mod a2a {
        pub mod v1 {
            tonic::include_proto!("lf.a2a.v1");
        }
    }
}

#[allow(clippy::all, unreachable_pub)]
mod faultline {
    pub mod v1 {
        tonic::include_proto!("faultline.v1");
    }
}
