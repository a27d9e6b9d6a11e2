//! Remote agents: another mesh, servers of other vendors, and servers of A2A 0.3.

mod a2a_v03;
mod meshes;
mod retries;
mod third_party;
