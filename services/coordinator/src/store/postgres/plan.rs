//! The plan of a batch: every write is decided in order against locked rows and folded into one
//! change per task. Pure: a batch costs one statement per table, however many writes it has.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use faultline_chassis::limits;
use faultline_proto::{id::TaskId, v1::AgentOffer};

use crate::store::{
    Extras, KeyName, KeyRow, PushKey, PushRow, PushWrite, Row, StoredEvent, Tally, Write,
    WriteError, Written,
};
use crate::task::{Millis, is_final};

/// The rows that a batch reads and locks before it is decided. They are locked in order, so that
/// two coordinators do not deadlock.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Needs {
    pub(super) tasks: BTreeSet<TaskId>,
    pub(super) keys: BTreeSet<(String, String, String)>,
    pub(super) pushes: BTreeSet<TaskId>,
}

impl Needs {
    /// New tasks have new ids, which need not be looked for; `all` looks for them nevertheless.
    pub(super) fn of(writes: &[Write], all: bool) -> Self {
        let (mut needs, mut fresh) = (Self::default(), HashSet::new());
        for write in writes {
            match write {
                Write::Insert { row, .. } if !all => drop(fresh.insert(row.id)),
                Write::Insert { row: Row { id, .. }, .. }
                | Write::Advance { row: Row { id, .. }, .. }
                | Write::CompareAndSwap { row: Row { id, .. }, .. }
                | Write::Queue { id, .. }
                | Write::Erase { id, .. }
                | Write::CountLate { id } => needs.task(*id, &fresh),
                Write::Push(PushWrite::Set(PushRow { key, .. })) => {
                    needs.task(key.task, &fresh);
                    needs.pushes.insert(key.task);
                }
                Write::Push(_)
                | Write::Offer { .. }
                | Write::Offered { .. }
                | Write::ForgetAgents { .. }
                | Write::ForgetKeys { .. }
                | Write::Expire { .. } => {}
            }
            if let Write::Insert { row: Row { parent: Some(parent), .. }, .. } = write {
                needs.task(*parent, &fresh);
            }
            needs.keys.extend(key_of(write).map(|key| name_of(&key.name)));
        }
        needs
    }

    fn task(&mut self, id: TaskId, fresh: &HashSet<TaskId>) {
        if !fresh.contains(&id) {
            self.tasks.insert(id);
        }
    }

    pub(super) fn nothing(&self) -> bool {
        self.tasks.is_empty() && self.keys.is_empty() && self.pushes.is_empty()
    }
}

fn key_of(write: &Write) -> Option<&KeyRow> {
    match write {
        Write::Insert { with, .. }
        | Write::Advance { with, .. }
        | Write::CompareAndSwap { with, .. } => with.as_deref()?.key.as_ref(),
        Write::Erase { key, .. } => key.as_deref(),
        _ => None,
    }
}

fn name_of(name: &KeyName) -> (String, String, String) {
    (name.principal.clone(), name.agent.clone(), name.key.clone())
}

/// A task's row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) version: u64,
    pub(super) owner: i64,
    pub(super) alive: bool,
}

/// The holder of an idempotency key, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) task: TaskId,
    pub(super) created: Millis,
}

/// The rows that were found.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) tasks: HashMap<TaskId, Found>,
    pub(super) keys: HashMap<KeyName, Held>,
    pub(super) pushes: HashMap<TaskId, HashSet<String>>,
}

/// The change of one task.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// In the database before.
    pub(super) was: bool,
    /// As it is now, in the order of the batch.
    is: Option<Found>,
    /// Its columns, if they change.
    pub(super) row: Option<Row>,
    /// Whom it waits for, if that changes.
    pub(super) queued: Option<Option<String>>,
    pub(super) late: i64,
}

impl Change {
    pub(super) fn erased(&self) -> bool {
        self.was && self.is.is_none()
    }

    pub(super) fn inserted(&self) -> bool {
        !self.was && self.is.is_some()
    }
}

/// One step of a push configuration, in the order of the batch.
#[derive(Debug)]
pub(super) enum PushStep {
    Set(PushRow),
    Sent { key: PushKey, seq: u64, done: bool },
    Delete(PushKey),
    Erase(TaskId),
}

/// Everything to write.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) written: Written,
    pub(super) tasks: BTreeMap<TaskId, Change>,
    pub(super) events: Vec<(TaskId, StoredEvent)>,
    /// With whether it is there to be replaced.
    pub(super) keys: HashMap<KeyName, (KeyRow, bool)>,
    pub(super) pushes: Vec<PushStep>,
    pub(super) offers: BTreeMap<String, (AgentOffer, Millis)>,
    pub(super) offered: Vec<(Vec<String>, Millis)>,
    pub(super) forget_agents: Vec<(Vec<String>, Millis, Tally)>,
    pub(super) forget: Vec<(Millis, usize)>,
    pub(super) expire: Vec<(Vec<TaskId>, Tally)>,
}

/// The planner of one batch: the locked rows, and the changes decided so far. It lives for one
/// transaction of the write connection.
struct Planner {
    me: i64,
    /// Broken on purpose: see `write`.
    unfenced: bool,
    /// Tasks of which a write was refused: later writes of the batch are based on it.
    refused: HashSet<TaskId>,
    /// Keys from before then have expired.
    expired: Millis,
    known: Known,
    plan: Plan,
}

/// Decides a batch. `me` is the lease that writes; keys from before `expired` count no more.
pub(super) fn decide(
    writes: Vec<Write>,
    me: i64,
    unfenced: bool,
    expired: Millis,
    known: Known,
) -> Plan {
    let (refused, plan) = (HashSet::new(), Plan::default());
    let mut planner = Planner { me, unfenced, refused, expired, known, plan };
    for write in writes {
        let applied = planner.apply(write);
        planner.plan.written.push(if applied { Ok(()) } else { Err(WriteError::Conflict) });
    }
    planner.plan
}

impl Planner {
    fn apply(&mut self, write: Write) -> bool {
        match write {
            Write::Insert { row, events, with } => self.insert(row, events, with),
            Write::Advance { from, row, events, with } => {
                self.advance(from, Some(self.me), row, events, with)
            }
            Write::CompareAndSwap { from, row, events, with } => {
                self.advance(from, None, row, events, with)
            }
            Write::Queue { id, agent } => {
                let me = self.me;
                let change = self.task(id);
                if change.is.is_some_and(|is| is.owner == me && is.alive) {
                    change.queued = Some(Some(agent));
                }
                true
            }
            Write::Erase { id, from, key } => self.erase(id, from, key),
            Write::CountLate { id } => {
                self.task(id).late += 1;
                true
            }
            Write::Offer { offer, at } => {
                self.plan.offers.insert(offer.name.clone(), (*offer, at));
                true
            }
            Write::Offered { names, at } => {
                self.plan.offered.push((names, at));
                true
            }
            Write::ForgetAgents { names, before, gone } => {
                self.plan.forget_agents.push((names, before, gone));
                true
            }
            Write::ForgetKeys { before, limit } => {
                self.plan.forget.push((before, limit));
                true
            }
            Write::Expire { ids, gone } => {
                self.plan.expire.push((ids, gone));
                true
            }
            Write::Push(write) => self.push(write),
        }
    }

    fn task(&mut self, id: TaskId) -> &mut Change {
        let found = self.known.tasks.get(&id).copied();
        let new = || Change { was: found.is_some(), is: found, ..Change::default() };
        self.plan.tasks.entry(id).or_insert_with(new)
    }

    fn insert(&mut self, row: Row, events: Vec<StoredEvent>, with: Option<Box<Extras>>) -> bool {
        let (me, change) = (self.me, self.task(row.id));
        if change.was || change.is.is_some() || !self.takes_key(with.as_deref(), row.id) {
            return false;
        }
        let ours = |is: Found| is.alive && is.owner == me;
        if row.parent.is_some_and(|parent| !self.task(parent).is.is_some_and(ours)) {
            return false;
        }
        self.step(me, row, events, with);
        true
    }

    /// By its version, and by its owner if one is named.
    fn advance(
        &mut self,
        from: u64,
        owner: Option<i64>,
        row: Row,
        events: Vec<StoredEvent>,
        with: Option<Box<Extras>>,
    ) -> bool {
        let Some(is) = self.task(row.id).is else { return false };
        let ours = owner.is_none_or(|owner| owner == is.owner);
        // A write that is based on a refused one may match the version of another by chance.
        let fits = is.version == from && ours && is.alive && !self.refused.contains(&row.id);
        let fits = fits || self.unfenced;
        if !fits || !self.takes_key(with.as_deref(), row.id) {
            self.refused.insert(row.id);
            return false;
        }
        self.step(is.owner, row, events, with);
        true
    }

    fn step(&mut self, owner: i64, row: Row, events: Vec<StoredEvent>, with: Option<Box<Extras>>) {
        let id = row.id;
        let alive = !is_final(row.state);
        let change = self.task(id);
        change.is = Some(Found { version: row.version, owner, alive });
        // The failure that ended it is written once.
        let failure = change.row.take().and_then(|before| before.failure);
        change.row = Some(Row { failure: row.failure.clone().or(failure), ..row });
        change.queued = Some(None);
        self.plan.events.extend(events.into_iter().map(|event| (id, event)));
        let Some(extras) = with else { return };
        extras.key.into_iter().for_each(|key| self.put_key(key));
        for push in extras.pushes {
            self.known.pushes.entry(id).or_default().insert(push.key.id.clone());
            self.plan.pushes.push(PushStep::Set(push));
        }
    }

    fn erase(&mut self, id: TaskId, from: u64, key: Option<Box<KeyRow>>) -> bool {
        let refused = self.refused.contains(&id);
        let change = self.task(id);
        if refused || change.is.is_none_or(|is| is.version != from) {
            return false;
        }
        (change.is, change.row, change.queued, change.late) = (None, None, None, 0);
        self.plan.events.retain(|(of, _)| *of != id);
        self.plan.pushes.push(PushStep::Erase(id));
        self.known.pushes.remove(&id);
        if let Some(key) = key.filter(|key| self.free(&key.name, id)) {
            self.put_key(*key);
        }
        true
    }

    fn takes_key(&self, with: Option<&Extras>, task: TaskId) -> bool {
        with.and_then(|extras| extras.key.as_ref()).is_none_or(|key| self.free(&key.name, task))
    }

    /// Nobody has it, or this task does, or it is too long ago.
    fn free(&self, name: &KeyName, task: TaskId) -> bool {
        let planned = self.plan.keys.get(name);
        let planned = planned.map(|(row, _)| Held { task: row.task_id, created: row.created });
        let held = planned.or_else(|| self.known.keys.get(name).copied());
        held.is_none_or(|held| held.task == task || held.created < self.expired)
    }

    fn put_key(&mut self, key: KeyRow) {
        let there = self.known.keys.contains_key(&key.name);
        self.plan.keys.insert(key.name.clone(), (key, there));
    }

    fn push(&mut self, write: PushWrite) -> bool {
        let step = match write {
            PushWrite::Set(row) => {
                let there = self.task(row.key.task).is.is_some();
                let known = self.known.pushes.entry(row.key.task).or_default();
                let room = known.contains(&row.key.id) || known.len() < limits::PUSH_CONFIGS_MAX;
                if !there || !room {
                    return false;
                }
                known.insert(row.key.id.clone());
                PushStep::Set(row)
            }
            PushWrite::Sent { key, seq, done } => PushStep::Sent { key, seq, done },
            PushWrite::Delete(key) => {
                if let Some(known) = self.known.pushes.get_mut(&key.task) {
                    known.remove(&key.id);
                }
                PushStep::Delete(key)
            }
        };
        self.plan.pushes.push(step);
        true
    }
}
