//! The failure path: what went wrong in an agent reaches the client whole, what goes wrong in a
//! worker costs what it must and no more, and what a client does wrong costs nobody else.

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

/// A trace of the client's own: its id, and the header that carries it.
fn trace() -> (String, String) {
    let id = format!("{:032x}", rand::random::<u128>() | 1);
    let header = format!("00-{id}-00f067aa0ba902b7-01");
    (id, header)
}
