//! The failure path: a failure of an agent reaches the client complete, a lost worker costs one
//! attempt, and a faulty client harms no other client.

mod advice;
mod agents;
mod business;
mod canaries;
mod client_retry;
mod codes;
mod deadlines;
mod fanout;
mod hostile_clients;
mod outcomes;
mod peers;
mod remote_agents;
mod representations;
mod rerun;
mod retry;
mod spans;
mod worker_loss;

faultline_tests::role!();

/// A trace of the client: its id and its `traceparent` header.
fn trace() -> (String, String) {
    let id = format!("{:032x}", rand::random::<u128>() | 1);
    let header = format!("00-{id}-00f067aa0ba902b7-01");
    (id, header)
}
