//! Whether an attempt holds one of its worker's slots. It gives its slot back while it waits for
//! other agents, else a chain of agents deeper than the free slots would never end. Pure: it says
//! what the coordinator has to be told, and tells nobody. Where an attempt only asks a human this
//! is the coordinator's business alone: it takes the slot at the question and gives it with the
//! answer.

/// What the coordinator has to be told: `Slot.released`.
pub(crate) type Told = Option<bool>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// How many other agents the attempt waits for.
    awaited: u32,
    stands: Stands,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stands {
    #[default]
    Held,
    Released,
    /// Asked for again, not yet given.
    Wanted,
}

impl Slot {
    /// The agent waits for one more.
    pub(crate) fn wait(&mut self) -> Told {
        self.awaited += 1;
        let news = self.stands != Stands::Released;
        self.stands = Stands::Released;
        news.then_some(true)
    }

    /// The agent waits for one less.
    pub(crate) fn wait_over(&mut self) -> Told {
        self.awaited -= 1;
        let wants = self.awaited == 0 && self.stands == Stands::Released;
        wants.then(|| {
            self.stands = Stands::Wanted;
            false
        })
    }

    /// The coordinator gave a slot. If it is released already, that was before the coordinator
    /// heard of it.
    pub(crate) fn given(&mut self) {
        if self.stands == Stands::Wanted {
            self.stands = Stands::Held;
        }
    }

    /// What a new connection has to be told.
    pub(crate) fn again(&self) -> Told {
        match self.stands {
            Stands::Held => None,
            Stands::Released => Some(true),
            Stands::Wanted => Some(false),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.stands == Stands::Held
    }

    /// Whether the agent's code may run: with a slot, or while it waits for others anyway.
    pub(crate) fn may_go_on(&self) -> bool {
        self.is_held() || self.awaited > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wait_releases_and_the_last_wants_it_back() {
        let mut slot = Slot::default();
        assert_eq!((slot.wait(), slot.wait()), (Some(true), None));
        assert_eq!((slot.is_held(), slot.may_go_on()), (false, true));
        assert_eq!((slot.wait_over(), slot.wait_over()), (None, Some(false)));
        assert!(!slot.may_go_on(), "not before it is given");
        assert_eq!(slot.again(), Some(false), "asked again on a new connection");
        slot.given();
        assert_eq!((slot.is_held(), slot.again()), (true, None));
    }

    #[test]
    fn a_slot_that_crossed_a_release_on_its_way_is_not_taken() {
        let mut slot = Slot::default();
        slot.wait();
        slot.wait_over();
        assert_eq!(slot.wait(), Some(true));
        slot.given();
        assert!(!slot.is_held());
        assert_eq!(slot.again(), Some(true));
    }
}
