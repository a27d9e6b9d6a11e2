//! The contract: every message that crosses a boundary, every reason a call or task can fail for,
//! and the only place where a failure becomes a `tonic::Status` or JSON. It knows no service.

pub mod advice;
pub mod answer;
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

/// What KEDA asks whoever knows how much there is to do.
#[allow(clippy::all, unreachable_pub)]
pub mod keda {
    tonic::include_proto!("externalscaler");
}

/// The encoded descriptor set of everything below, custom options included.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

// Generated code names its neighbours by their package path, so the modules stand as packages do.
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
