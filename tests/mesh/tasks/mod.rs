//! One task at a time: sending, streaming, listing, cancelling, and the guarantees under load.

mod cancel;
mod guarantees;
mod load;
mod queries;
mod send;
mod streams;
