//! SIGTERM and SIGINT; Ctrl-C where there are no Unix signals.

use std::io;

/// The signals that ask a process to end. Create it before the first wait, so that no signal is
/// missed.
pub struct Signals(imp::Signals);

impl Signals {
    pub fn new() -> io::Result<Self> {
        imp::Signals::new().map(Self)
    }

    /// Waits for the next signal and returns its number.
    pub async fn next(&mut self) -> i32 {
        self.0.next().await
    }
}

#[cfg(unix)]
mod imp {
    use std::io;

    use tokio::signal::unix::{Signal, SignalKind, signal};

    pub(super) struct Signals {
        terminate: Signal,
        interrupt: Signal,
    }

    impl Signals {
        pub(super) fn new() -> io::Result<Self> {
            let terminate = signal(SignalKind::terminate())?;
            Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
        }

        pub(super) async fn next(&mut self) -> i32 {
            let kind = tokio::select! {
                _ = self.terminate.recv() => SignalKind::terminate(),
                _ = self.interrupt.recv() => SignalKind::interrupt(),
            };
            kind.as_raw_value()
        }
    }
}

#[cfg(not(unix))]
mod imp {
    use std::io;

    const INTERRUPT: i32 = 2;

    pub(super) struct Signals;

    impl Signals {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub(super) async fn next(&mut self) -> i32 {
            // Without a handler Ctrl-C ends the process at once.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            INTERRUPT
        }
    }
}
