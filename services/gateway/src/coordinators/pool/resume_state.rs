//! The state from which a stream resumes: task, last event, and the call that continues it. Pure:
//! it sees frames and makes calls, and does not know links.

use faultline_proto::{
    Failure,
    a2a::{
        SendMessageRequest, StreamResponse, SubscribeToTaskRequest, TaskState,
        stream_response::Payload,
    },
    v1::{Caller, Frame, Subscribe, WatchRequest, WatchResponse, call},
};

use crate::coordinators::link::{self, RetrySafety};

/// The resume state of one stream. Owned by its `FrameStream`, which records every frame in it.
pub(super) struct ResumeState {
    caller: Caller,
    kind: Kind,
    retry_safety: RetrySafety,
    task_id: String,
    /// The number of the last event; zero without a numbered event.
    seq: u64,
    has_begun: bool,
    is_resumed: bool,
    /// Whether `Moved` without a task means that the coordinator did nothing.
    undone_when_moved: bool,
    /// A coordinator did nothing and left, and no other has got the call since.
    is_undone: bool,
    /// The last frame was the final one.
    is_over: bool,
}

enum Kind {
    /// `request` is kept until the first frame, if it may have to be sent again.
    Send {
        tenant: String,
        request: Option<Box<SendMessageRequest>>,
    },
    Subscribe(Subscribe),
    Watch(WatchRequest),
    Other,
}

impl ResumeState {
    pub(super) fn new(caller: &Caller, body: &call::Body, has_alternative: bool) -> Self {
        let retry_safety = RetrySafety::of(caller, body);
        let kind = match body {
            call::Body::Stream(request) => Kind::Send {
                tenant: request.tenant.clone(),
                request: (retry_safety == RetrySafety::WithKey || has_alternative)
                    .then(|| Box::new(request.clone())),
            },
            call::Body::Subscribe(subscribe) => Kind::Subscribe(subscribe.clone()),
            call::Body::Watch(request) => Kind::Watch(request.clone()),
            _ => Kind::Other,
        };
        let (seq, task_id) = match &kind {
            Kind::Subscribe(Subscribe { request, after }) => {
                (after.unwrap_or(0), request.as_ref().map_or("", |request| &request.id).to_owned())
            }
            _ => (0, String::new()),
        };
        Self {
            caller: caller.clone(),
            kind,
            retry_safety,
            task_id,
            seq,
            has_begun: false,
            is_resumed: false,
            undone_when_moved: link::is_undone_when_moved(body),
            is_undone: false,
            is_over: false,
        }
    }

    /// Records a frame; `false` for a duplicate.
    pub(super) fn record(&mut self, frame: &Frame) -> bool {
        if self.is_resumed && frame.seq > 0 && frame.seq <= self.seq {
            return false;
        }
        self.has_begun = true;
        if let Kind::Send { request, .. } = &mut self.kind {
            *request = None;
        }
        let Some(response) = &frame.response else { return true };
        self.seq = frame.seq;
        if self.task_id.is_empty() {
            task_id(response).clone_into(&mut self.task_id);
        }
        self.is_over = match state(response) {
            Some(
                TaskState::Completed
                | TaskState::Failed
                | TaskState::Canceled
                | TaskState::Rejected,
            ) => true,
            // A streaming send ends at a question. After a resume the coordinator sees a
            // subscription, which does not.
            Some(TaskState::InputRequired) => matches!(self.kind, Kind::Send { .. }),
            _ => false,
        };
        true
    }

    /// Whether the stream ends at the last frame without an end message of the coordinator.
    pub(super) fn ends_at_last_frame(&self) -> bool {
        self.is_over && self.is_resumed
    }

    /// Whether the last frame was the final one.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether there is something to resume: a frame has come, or the task is known.
    pub(super) fn can_resume(&self) -> bool {
        self.has_begun || self.is_handed_over()
    }

    /// Whether this is a send without a frame whose task a leaving coordinator has named.
    pub(super) fn is_handed_over(&self) -> bool {
        !self.has_begun && matches!(self.kind, Kind::Send { .. }) && !self.task_id.is_empty()
    }

    /// The coordinator left, and named the task that continues elsewhere, or none.
    pub(super) fn on_moved(&mut self, task_id: String) {
        if self.can_resume() {
            return;
        }
        self.is_undone = task_id.is_empty() && self.undone_when_moved;
        if matches!(self.kind, Kind::Send { .. }) {
            self.task_id = task_id;
        }
    }

    pub(super) fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// The call that continues the stream; `None` if there is no safe one.
    pub(super) fn next_call(&mut self) -> Option<(Caller, call::Body)> {
        let may_send =
            std::mem::take(&mut self.is_undone) || self.retry_safety == RetrySafety::WithKey;
        let subscribe = |tenant: &str, after| {
            let tenant = tenant.to_owned();
            let id = self.task_id.clone();
            let request = Some(SubscribeToTaskRequest { tenant, id });
            call::Body::Subscribe(Subscribe { request, after })
        };
        let body = match &self.kind {
            Kind::Send { request, .. } if !self.has_begun && may_send => {
                call::Body::Stream((**request.as_ref()?).clone())
            }
            Kind::Send { tenant, .. } if self.is_handed_over() => subscribe(tenant, None),
            Kind::Send { .. } if self.seq == 0 || self.task_id.is_empty() => return None,
            Kind::Send { tenant, .. } => subscribe(tenant, Some(self.seq)),
            Kind::Subscribe(asked) if !self.has_begun => call::Body::Subscribe(asked.clone()),
            Kind::Subscribe(_) if self.seq == 0 => return None,
            Kind::Subscribe(asked) => {
                subscribe(asked.request.as_ref().map_or("", |r| &r.tenant), Some(self.seq))
            }
            Kind::Watch(request) => call::Body::Watch(request.clone()),
            Kind::Other => return None,
        };
        Some((self.caller.clone(), body))
    }

    /// The stream has resumed. A watch gets a frame at once that says that changes were missed.
    pub(super) fn on_resumed(&mut self) -> Option<Frame> {
        self.is_resumed = true;
        let is_watch = matches!(self.kind, Kind::Watch(_));
        is_watch.then(|| {
            let changed = Some(WatchResponse { missed: true, ..WatchResponse::default() });
            Frame { changed, ..Frame::default() }
        })
    }

    /// The failure of a stream that does not resume.
    pub(super) fn failure(&self, what: &str) -> Failure {
        if self.is_undone {
            return link::unreachable();
        }
        let failure = self.retry_safety.failure(what);
        if self.is_handed_over() { failure.with_task(&self.task_id, "") } else { failure }
    }
}

fn task_id(response: &StreamResponse) -> &str {
    match &response.payload {
        Some(Payload::Task(task)) => &task.id,
        Some(Payload::StatusUpdate(update)) => &update.task_id,
        Some(Payload::ArtifactUpdate(update)) => &update.task_id,
        Some(Payload::Message(_)) | None => "",
    }
}

fn state(response: &StreamResponse) -> Option<TaskState> {
    let status = match &response.payload {
        Some(Payload::Task(task)) => task.status.as_ref(),
        Some(Payload::StatusUpdate(update)) => update.status.as_ref(),
        Some(Payload::ArtifactUpdate(_) | Payload::Message(_)) | None => None,
    };
    status.map(|status| status.state())
}
