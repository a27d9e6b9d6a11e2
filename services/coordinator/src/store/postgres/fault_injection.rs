//! Fault injection for tests: switches that disable fencing in a debug build, to show that the
//! tests notice. A release build has none.

use std::{env, sync::OnceLock};

pub(super) struct Breaks {
    /// It writes whatever it likes, whoever else has the task.
    pub(super) unfenced: bool,
    /// It tells the others nothing.
    pub(super) mute: bool,
}

pub(super) fn get() -> &'static Breaks {
    static BREAKS: OnceLock<Breaks> = OnceLock::new();
    let is_set = |name| cfg!(debug_assertions) && env::var_os(name).is_some();
    BREAKS.get_or_init(|| Breaks {
        unfenced: is_set("FAULTLINE_CHAOS_UNFENCED"),
        mute: is_set("FAULTLINE_CHAOS_MUTE"),
    })
}
