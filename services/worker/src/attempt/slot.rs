//! Whether an attempt holds one of its worker's slots. It gives its slot back while it waits for
//! other agents, else a chain of agents deeper than the free slots would never end. Pure: it says
//! what the coordinator has to be told, and tells nobody. Where an attempt only asks a human this
//! is the coordinator's business alone: it takes the slot at the question and gives it with the
//! answer.

/// What the coordinator has to be told: `Slot.released`.
pub(crate) type SlotUpdate = Option<bool>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// How many other agents the attempt waits for.
    awaited: u32,
    state: SlotState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Held,
    Released,
    /// Asked for again, not yet given.
    Requested,
}

impl Slot {
    /// The agent waits for one more.
    pub(crate) fn begin_wait(&mut self) -> SlotUpdate {
        self.awaited += 1;
        let is_new = self.state != SlotState::Released;
        self.state = SlotState::Released;
        is_new.then_some(true)
    }

    /// The agent waits for one less.
    pub(crate) fn end_wait(&mut self) -> SlotUpdate {
        self.awaited -= 1;
        let wants = self.awaited == 0 && self.state == SlotState::Released;
        wants.then(|| {
            self.state = SlotState::Requested;
            false
        })
    }

    /// The coordinator gave a slot. If it is released already, that was before the coordinator
    /// heard of it.
    pub(crate) fn granted(&mut self) {
        if self.state == SlotState::Requested {
            self.state = SlotState::Held;
        }
    }

    /// What a new connection has to be told.
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

    /// Whether the agent's code may run: with a slot, or while it waits for others anyway.
    pub(crate) fn may_run(&self) -> bool {
        self.is_held() || self.awaited > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wait_releases_and_the_last_wants_it_back() {
        let mut slot = Slot::default();
        assert_eq!((slot.begin_wait(), slot.begin_wait()), (Some(true), None));
        assert_eq!((slot.is_held(), slot.may_run()), (false, true));
        assert_eq!((slot.end_wait(), slot.end_wait()), (None, Some(false)));
        assert!(!slot.may_run(), "not before it is given");
        assert_eq!(slot.resend(), Some(false), "asked again on a new connection");
        slot.granted();
        assert_eq!((slot.is_held(), slot.resend()), (true, None));
    }

    #[test]
    fn a_slot_that_crossed_a_release_on_its_way_is_not_taken() {
        let mut slot = Slot::default();
        slot.begin_wait();
        slot.end_wait();
        assert_eq!(slot.begin_wait(), Some(true));
        slot.granted();
        assert!(!slot.is_held());
        assert_eq!(slot.resend(), Some(true));
    }
}
