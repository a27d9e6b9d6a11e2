//! Handles LISTEN/NOTIFY hints from other coordinators, and the periodic comparison that finds lost
//! hints: tasks that a peer changed or took, watched tasks, relatives that ended, new agents. A
//! hint is only a reason to read the store.

use std::{collections::HashMap, sync::Arc};

use faultline_proto::id::TaskId;

use crate::{
    clock::now,
    engine::core::{Core, State},
    error::Error,
    store::{Cluster, Notice, ReadError, Scope},
    task::is_final,
    telemetry::metrics::Acquired,
};

impl Core {
    /// Handles one notification.
    pub(crate) async fn on_notification(self: &Arc<Self>, cluster: &dyn Cluster, notice: Notice) {
        let heard = match notice {
            Notice::Changed(ids) => self.on_tasks_changed(ids).await,
            Notice::Queued(agents) => {
                self.lock().registry.peer_load.note_backlog(agents);
                Ok(())
            }
            Notice::Offered => self.load_agents().await,
            Notice::Followed(id) => {
                self.touch(|state| state.clear_disconnect_grace(id));
                Ok(())
            }
            Notice::Left => {
                self.look(cluster, false).await;
                Ok(())
            }
            Notice::Missed => {
                self.lock().feed.lose();
                self.compare(cluster).await;
                Ok(())
            }
        };
        if let Err(error) = heard {
            // The next comparison finds it.
            tracing::debug!(%error, "changes of other coordinators cannot be read");
        }
    }

    /// These tasks were changed by a peer.
    async fn on_tasks_changed(self: &Arc<Self>, ids: Vec<TaskId>) -> Result<(), Error> {
        let (ours, kin) = {
            let mut state = self.lock();
            ids.iter().for_each(|id| state.feed.note(*id));
            state.mark_remote_dirty(&ids);
            let ours: Vec<_> = ids.iter().filter(|id| state.tasks.contains(id)).copied().collect();
            let kin: Vec<_> = ids.into_iter().filter(|id| state.is_remote_relative(id)).collect();
            (ours, kin)
        };
        for id in ours {
            self.refresh_task(id).await?;
        }
        self.check_remote_relatives(kin).await
    }

    /// Reads the relatives that peers own: children end with their parent.
    async fn check_remote_relatives(&self, ids: Vec<TaskId>) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let rows = self.store.rows(ids.clone()).await?;
        let lives = |id: &TaskId| rows.iter().any(|row| row.id == *id && !is_final(row.state));
        let ended: Vec<_> = ids.into_iter().filter(|id| !lives(id)).collect();
        if !ended.is_empty() {
            self.change(|state| {
                ended.into_iter().for_each(|id| state.on_remote_relative_ended(id, now()))
            });
        }
        Ok(())
    }

    /// Reads an agent that is unknown here: a peer may just have offered it.
    pub(crate) async fn load_unknown_agent(&self, agent: &str) -> Result<(), Error> {
        let is_unknown_agent = self.lock().is_unknown_agent(agent);
        if is_unknown_agent {
            // The name comes from a caller and may not exist, so only this agent is read.
            let only = (!agent.is_empty()).then(|| agent.to_owned());
            let known = self.store.agents(only).await?;
            self.change(|state| known.into_iter().for_each(|known| state.registry.restore(known)));
        }
        Ok(())
    }

    async fn load_agents(&self) -> Result<(), Error> {
        let known = self.store.agents(None).await?;
        self.change(|state| state.reconcile_agents(known));
        Ok(())
    }

    /// Finds changes whose notification was lost, or was never sent because its sender died.
    pub(crate) async fn compare(self: &Arc<Self>, cluster: &dyn Cluster) {
        if self.lock().closed.is_some() {
            return;
        }
        let compared = async {
            let owned = cluster.owned().await?;
            let (owned_only_in_memory, unknown, kin): (Vec<_>, Vec<_>, _) = {
                let mut state = self.lock();
                let followed: Vec<_> = state.remote_watches.keys().copied().collect();
                state.remote_dirty.extend(followed);
                let unknown = owned.iter().map(|(id, _)| *id);
                let unknown = unknown.filter(|id| !state.tasks.contains(id)).collect();
                (state.owned_only_in_memory(&owned), unknown, state.remote_relatives())
            };
            for id in owned_only_in_memory {
                self.refresh_task(id).await?;
            }
            self.activate_unknown_tasks(unknown).await?;
            self.check_remote_relatives(kin).await?;
            self.load_agents().await
        };
        if let Err(error) = compared.await {
            tracing::debug!(%error, "comparison with the store failed");
        }
    }

    /// Activates tasks that the store assigned to this coordinator in an answer that was lost.
    async fn activate_unknown_tasks(&self, ids: Vec<TaskId>) -> Result<(), Error> {
        for id in ids {
            let stored = match self.store.task(id, Scope::default()).await {
                Err(ReadError::Damaged { .. }) => continue,
                stored => stored?,
            };
            let stray = stored.filter(|stored| stored.ours && !stored.task.is_final());
            self.activate_tasks(
                stray.map(|stored| stored.task).into_iter().collect(),
                Acquired::TakenOver,
            );
        }
        Ok(())
    }
}

impl State {
    /// Whether the agent is unknown here and peers may know it.
    pub(crate) fn is_unknown_agent(&self, agent: &str) -> bool {
        self.is_shared
            && match agent {
                "" => self.registry.agents.is_empty(),
                agent => !self.registry.agents.contains_key(agent),
            }
    }

    /// Tasks that memory counts as owned and the store does not.
    fn owned_only_in_memory(&self, owned: &[(TaskId, u64)]) -> Vec<TaskId> {
        let owned: HashMap<_, _> = owned.iter().copied().collect();
        let active = self.tasks.iter().filter(|(_, active)| active.is_confirmed());
        let owned_only_in_memory = active.filter(|(id, active)| {
            owned.get(id).is_none_or(|version| *version > active.pending().version)
        });
        owned_only_in_memory.map(|(id, _)| id).collect()
    }
}
