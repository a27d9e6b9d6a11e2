//! Push notifications: what a task's owner asks for (`operations`), what is sent and what the
//! answer means (`request`), and the delivery that goes on until the webhook has taken everything
//! (`deliver`). The task's events are the outbox: a delivery follows them as any watcher does, and
//! its place in them is stored when the webhook has taken one. So nothing here can delay a task.

mod deliver;
mod operations;
mod pending;

#[cfg(test)]
mod tests;
