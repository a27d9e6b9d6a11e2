//! Attacks on the ports: CSRF, DNS rebinding, stolen credentials, resource exhaustion.

mod addresses;
mod browsers;
mod credentials;
mod floods;
mod host_names;
mod worker_floods;
