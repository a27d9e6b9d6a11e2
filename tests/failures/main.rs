//! The failure path: what went wrong in an agent reaches the client whole, what goes wrong in a
//! worker costs what it must and no more, and what a client does wrong costs nobody else.

mod advice;
mod again;
mod agents;
mod business;
mod canaries;
mod codes;
mod deadlines;
mod elsewhere;
mod fanout;
mod hostile;
mod loss;
mod outcomes;
mod peers;
mod rerun;
mod retry;
mod shapes;
mod spans;

faultline_tests::role!();

/// A trace of the client's own: its id, and the header that carries it.
fn trace() -> (String, String) {
    let id = format!("{:032x}", rand::random::<u128>() | 1);
    let header = format!("00-{id}-00f067aa0ba902b7-01");
    (id, header)
}
