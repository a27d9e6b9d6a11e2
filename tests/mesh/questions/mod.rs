//! Questions of agents (interrupts): their answers, forms, expiry, and recovery after a crash.

mod answers;
mod forms;
