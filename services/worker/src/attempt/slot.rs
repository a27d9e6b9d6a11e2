//! Slot of an attempt: the right to compute, of which a worker has a limited number. An attempt
//! releases its slot while it waits for other agents; otherwise a chain of delegations deeper than
//! the number of free slots would deadlock. Pure: each method returns the update for the
//! coordinator. While an attempt waits for a human, the coordinator alone takes the slot and
//! returns it with the answer.

/// The update for the coordinator, if one is due: `Slot.released`.
pub(crate) type SlotUpdate = Option<bool>;

/// Part of the state of an attempt, under the lock of that state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Number of other agents that the attempt waits for.
    awaited: u32,
    state: SlotState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Held,
    Released,
    /// Requested, not yet granted.
    Requested,
}

impl Slot {
    /// The agent waits for one more agent.
    pub(crate) fn begin_wait(&mut self) -> SlotUpdate {
        self.awaited += 1;
        let is_new = self.state != SlotState::Released;
        self.state = SlotState::Released;
        is_new.then_some(true)
    }

    /// The agent waits for one agent less.
    pub(crate) fn end_wait(&mut self) -> SlotUpdate {
        self.awaited -= 1;
        let is_due = self.awaited == 0 && self.state == SlotState::Released;
        is_due.then(|| {
            self.state = SlotState::Requested;
            false
        })
    }

    /// The coordinator granted a slot. A grant for a slot that is released is stale: it crossed the
    /// release on its way.
    pub(crate) fn granted(&mut self) {
        if self.state == SlotState::Requested {
            self.state = SlotState::Held;
        }
    }

    /// The update that a new connection needs.
    pub(crate) fn resend(&self) -> SlotUpdate {
        match self.state {
            SlotState::Held => None,
            SlotState::Released => Some(true),
            SlotState::Requested => Some(false),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state == SlotState::Held
    }

    /// Whether the agent's code may run: with a slot, or while it waits for other agents.
    pub(crate) fn may_run(&self) -> bool {
        self.is_held() || self.awaited > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_wait_releases_the_slot_and_last_wait_requests_it() {
        let mut slot = Slot::default();
        assert_eq!((slot.begin_wait(), slot.begin_wait()), (Some(true), None));
        assert_eq!((slot.is_held(), slot.may_run()), (false, true));
        assert_eq!((slot.end_wait(), slot.end_wait()), (None, Some(false)));
        assert!(!slot.may_run(), "no run before the grant");
        assert_eq!(slot.resend(), Some(false), "requested again on a new connection");
        slot.granted();
        assert_eq!((slot.is_held(), slot.resend()), (true, None));
    }

    #[test]
    fn grant_that_crossed_a_release_is_ignored() {
        let mut slot = Slot::default();
        slot.begin_wait();
        slot.end_wait();
        assert_eq!(slot.begin_wait(), Some(true));
        slot.granted();
        assert!(!slot.is_held());
        assert_eq!(slot.resend(), Some(true));
    }
}
