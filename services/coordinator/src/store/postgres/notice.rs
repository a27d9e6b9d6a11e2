//! LISTEN and NOTIFY between coordinators: outgoing notices are merged and split to fit;
//! incoming ones arrive on a connection of their own. Notices are hints: a receiver that may
//! have missed one compares with the store.

use std::{
    collections::BTreeSet,
    future::poll_fn,
    sync::{Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD as BASE64};
use deadpool_postgres::Object;
use faultline_proto::id::TaskId;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_postgres::AsyncMessage;

use crate::store::{
    Notice,
    postgres::{READ_MAX, Shared, fault_injection},
};

/// Notices that wait for the database, or for who reads them.
pub(super) const WAITING_MAX: usize = 1024;
/// PostgreSQL takes less than 8000 bytes.
const BYTES_MAX: usize = 7900;
/// Ids in one piece, with room for the rest of it.
const IDS_MAX: usize = 300;
/// Before a broken connection is made anew.
const PAUSE: Duration = Duration::from_millis(500);
const TELL: &str = "SELECT pg_notify('faultline', $1)";

/// Several notices as one.
#[derive(Debug, Default, PartialEq)]
struct Word {
    changed: BTreeSet<TaskId>,
    queued: BTreeSet<String>,
    followed: BTreeSet<TaskId>,
    offered: bool,
    left: bool,
    missed: bool,
}

impl Word {
    fn add(&mut self, notice: Notice) {
        match notice {
            Notice::Changed(ids) => self.changed.extend(ids),
            Notice::Queued(agents) => self.queued.extend(agents),
            Notice::Followed(id) => drop(self.followed.insert(id)),
            Notice::Offered => self.offered = true,
            Notice::Left => self.left = true,
            Notice::Missed => self.missed = true,
        }
    }

    /// Texts that say it, each small enough. The first word of each is who says it.
    fn texts(self, me: i64) -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut ids = |mark: &str, all: &BTreeSet<TaskId>| {
            let all: Vec<_> = all.iter().collect();
            for part in all.chunks(IDS_MAX) {
                let bytes: Vec<u8> = part.iter().flat_map(|id| *id.as_bytes()).collect();
                parts.push(format!("{mark}:{}", BASE64.encode(bytes)));
            }
        };
        ids("c", &self.changed);
        ids("f", &self.followed);
        parts.extend(self.queued.iter().map(|agent| format!("q:{agent}")));
        let flags = [(self.offered, "o"), (self.left, "l"), (self.missed, "m")];
        parts.extend(flags.iter().filter(|(said, _)| *said).map(|(_, mark)| (*mark).to_owned()));
        let mut texts: Vec<String> = Vec::new();
        for part in parts {
            match texts.last_mut().filter(|text| text.len() + part.len() < BYTES_MAX) {
                Some(text) => *text = format!("{text} {part}"),
                None => texts.push(format!("{me} {part}")),
            }
        }
        texts
    }
}

/// The notices in a text, unless `me` sent it. Kinds of a newer version are skipped.
fn heard(text: &str, me: i64) -> Vec<Notice> {
    let mut words = text.split(' ');
    if words.next().and_then(|who| who.parse().ok()) == Some(me) {
        return Vec::new();
    }
    let (mut notices, mut queued) = (Vec::new(), Vec::new());
    for word in words {
        let (mark, value) = word.split_once(':').unwrap_or((word, ""));
        let ids = || {
            let bytes = BASE64.decode(value).unwrap_or_default();
            let ids = bytes.chunks_exact(16).filter_map(|id| id.try_into().ok());
            ids.map(TaskId::from_bytes).collect::<Vec<_>>()
        };
        match mark {
            "c" => notices.push(Notice::Changed(ids())),
            "f" => notices.extend(ids().into_iter().map(Notice::Followed)),
            "q" => queued.push(value.to_owned()),
            "o" => notices.push(Notice::Offered),
            "l" => notices.push(Notice::Left),
            "m" => notices.push(Notice::Missed),
            _ => {}
        }
    }
    if !queued.is_empty() {
        notices.push(Notice::Queued(queued));
    }
    notices
}

/// Tells the others, as long as there are any.
pub(super) async fn tell_loop(shared: Weak<Shared>, mut notices: mpsc::Receiver<Notice>) {
    let mut missed = false;
    while let Some(first) = notices.recv().await {
        let Some(shared) = shared.upgrade() else { return };
        let mut word = Word { missed, ..Word::default() };
        word.add(first);
        while let Ok(next) = notices.try_recv() {
            word.add(next);
        }
        word.missed |= shared.unsaid.swap(false, Relaxed);
        if shared.others() == 0 {
            missed = false;
            continue;
        }
        missed = shared.say(word.texts(shared.lease())).await.is_err();
    }
}

impl Shared {
    async fn say(&self, texts: Vec<String>) -> Result<(), ()> {
        if fault_injection::get().mute {
            return Ok(());
        }
        let client = self.pool.get().await.map_err(drop)?;
        let said = async {
            let statement = client.prepare_cached(TELL).await?;
            for text in texts {
                client.query(&statement, &[&text]).await?;
            }
            Ok::<_, tokio_postgres::Error>(())
        };
        match timeout(READ_MAX, said).await {
            Ok(said) => said.map_err(drop),
            Err(_) => {
                drop(Object::take(client));
                Err(())
            }
        }
    }

    /// At once, and not merged with anything.
    pub(super) async fn say_now(&self, notice: Notice) {
        let mut word = Word::default();
        word.add(notice);
        let _ = self.say(word.texts(self.lease())).await;
    }
}

/// Listens for as long as the store is there. Whenever it begins to, anything may have been missed.
pub(super) async fn listen_loop(shared: Weak<Shared>, to: mpsc::Sender<Notice>) {
    loop {
        let Some(this) = shared.upgrade() else { return };
        let address = this.address.clone();
        drop(this);
        if let Ok((client, mut connection)) = address.connect().await {
            let listen = timeout(READ_MAX, client.batch_execute("LISTEN faultline"));
            let mut listen = Box::pin(listen);
            let (mut listening, mut missed) = (false, false);
            loop {
                tokio::select! {
                    done = &mut listen, if !listening => match done {
                        Ok(Ok(())) => (listening, missed) = (true, true),
                        Ok(Err(_)) | Err(_) => break,
                    },
                    room = to.reserve(), if missed => match room {
                        Ok(room) => {
                            room.send(Notice::Missed);
                            missed = false;
                        }
                        Err(_) => return,
                    },
                    message = poll_fn(|cx| connection.poll_message(cx)) => match message {
                        Some(Ok(AsyncMessage::Notification(said))) => {
                            let Some(this) = shared.upgrade() else { return };
                            for notice in heard(said.payload(), this.lease()) {
                                missed |= to.try_send(notice).is_err();
                            }
                        }
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => break,
                    },
                }
            }
        }
        tracing::warn!(store = address.shown, "the LISTEN connection was lost: reconnecting");
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_split_to_fit_and_reach_others() {
        let ids: Vec<_> = (0..1000).map(|_| TaskId::new()).collect();
        let agents: Vec<_> = (0..200).map(|n| format!("agent-{n:03}-{}", "x".repeat(50))).collect();
        let said = [
            Notice::Changed(ids.clone()),
            Notice::Queued(agents.clone()),
            Notice::Followed(ids[0]),
            Notice::Offered,
            Notice::Left,
            Notice::Missed,
        ];
        let mut word = Word::default();
        said.into_iter().for_each(|notice| word.add(notice));
        let texts = word.texts(7);
        assert!(texts.iter().all(|text| text.len() < 8000));
        let mut back = Word::default();
        texts.iter().flat_map(|text| heard(text, 8)).for_each(|notice| back.add(notice));
        let mut again = Word { changed: ids.iter().copied().collect(), ..Word::default() };
        again.queued.extend(agents);
        again.followed.insert(ids[0]);
        (again.offered, again.left, again.missed) = (true, true, true);
        assert_eq!(back, again);
        assert!(texts.iter().all(|text| heard(text, 7).is_empty()), "nobody hears themselves");
    }
}
