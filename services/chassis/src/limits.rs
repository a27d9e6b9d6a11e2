//! Every bound of the mesh: one constant each, with its unit in the name and its reason in the
//! comment.

use std::time::Duration;

// Requests of callers.

/// One message, encoded. Larger content belongs behind a URL.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// One HTTP request body: a message at its limit, doubled by base64 and escapes.
pub const BODY_BYTES_MAX: usize = 9 * 1024 * 1024;
/// Depth of `data` and metadata that ProtoJSON reads. Protobuf nests three messages per level, and
/// prost stops at 100.
pub const DATA_DEPTH_MAX: usize = faultline_proto::json::VALUE_DEPTH_MAX;
/// Strings made by clients that become keys: context ids, message ids.
pub const KEY_BYTES_MAX: usize = 256;
/// Parts of one message.
pub const PARTS_MAX: usize = 1024;
/// Entries of the lists of names beside them: reference tasks, extensions, output modes.
pub const NAMES_MAX: usize = 256;
/// Agents of one caller's token, and extensions that a call declares.
pub const CALLER_NAMES_MAX: usize = 4096;
/// Each metadata of a message, encoded. Metadata is stored and shown with the task.
pub const METADATA_BYTES_MAX: usize = 64 * 1024;

/// Retention of the idempotency key of a send. A repetition after that is a new send.
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// Retention of a cancel that no worker was there to take (deferred cancel), and the longest pause
/// between two attempts to deliver it.
pub const DEFERRED_CANCEL_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
pub const DEFERRED_CANCEL_BACKOFF_MAX: Duration = Duration::from_secs(10 * 60);

/// A caller's `tracestate`. The W3C standard requires no more to be propagated.
pub const TRACESTATE_BYTES_MAX: usize = 512;

// Export queues.

/// Spans that wait for the collector, about half a KiB each. Beyond that the oldest are dropped.
/// OpenTelemetry's default of 2048 lasts a twentieth of a second here.
pub const OTLP_QUEUE_MAX: usize = 16_384;
/// Spans in one request: collectors accept 4 MiB.
pub const OTLP_BATCH_MAX: usize = 2048;
/// Longest wait of a record for others of its batch.
pub const OTLP_DELAY: Duration = Duration::from_secs(2);
/// One request to the collector.
pub const OTLP_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait for the collector at the end of the process.
pub const OTLP_FLUSH: Duration = Duration::from_secs(5);

// The in-process network.

/// Connections that wait to be accepted. Further clients wait to connect.
pub const NETWORK_BACKLOG: usize = 64;
/// Bytes that one side may send before the other has read them, like a socket buffer.
pub const NETWORK_BUFFER_BYTES: usize = 256 * 1024;

// State of one task.

/// All artifacts of one task together, encoded.
pub const TASK_ARTIFACT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// All messages of one task together, encoded. Each attempt gets them again.
pub const TASK_MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Artifacts on one page of a list, encoded. The page ends early above it.
pub const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Tasks counted for `totalSize` of a list; with more, the list reports this number. Counting a
/// million tasks would delay every page.
pub const LIST_TOTAL_MAX: usize = 10_000;
/// Different artifacts of one task.
pub const TASK_ARTIFACTS_MAX: usize = 1024;
/// Events of one task. A chunk is an event, so this bounds a stream that never ends.
pub const TASK_EVENTS_MAX: u64 = 1_000_000;
/// The checkpoint of an attempt.
pub const CHECKPOINT_BYTES_MAX: usize = 1024 * 1024;

/// Recoverable failures kept with one task; further ones are only counted.
pub const TOLERATED_MAX: usize = 16;
/// The recoverable failures of one task together, encoded. They are shown with the task, like
/// metadata.
pub const TOLERATED_BYTES_MAX: usize = 64 * 1024;
/// Open questions of one task: as many as a person can look through.
pub const OPEN_QUESTIONS_MAX: usize = 64;
/// The open questions of one task together, encoded: each status lists them. One alone may be as
/// large as a message.
pub const OPEN_QUESTIONS_BYTES_MAX: usize = 1024 * 1024;

// Delegations.

/// Agents that one fan-out may call.
pub const FANOUT_BRANCHES_MAX: usize = 64;

/// Tasks between one that shows a question and the one that asked it, a remote mesh among them.
pub const QUESTION_PATH_MAX: usize = 64;

/// Delegations above a task. A deeper chain is most likely a cycle.
pub const DELEGATION_DEPTH_MAX: u32 = 16;
/// Active tasks below a root task. One cancel reaches all of them in one commit.
pub const DESCENDANTS_MAX: usize = 1000;
/// Children shown with a task, the oldest first. The number of children in all has no bound.
pub const CHILDREN_SHOWN_MAX: usize = 1000;

// Webhooks (push notifications).

/// Push configurations of one task.
pub const PUSH_CONFIGS_MAX: usize = 16;
/// The URL of a webhook.
pub const PUSH_URL_BYTES_MAX: usize = 2 * 1024;
/// The token of a webhook, and its credentials. Each becomes a header, which servers bound at 8
/// KiB.
pub const PUSH_SECRET_BYTES_MAX: usize = 4 * 1024;
/// Requests to all webhooks at the same time…
pub const PUSH_REQUESTS_MAX: usize = 256;
/// …and to one host: a webhook that hangs must not use up the requests of the others.
pub const PUSH_REQUESTS_PER_HOST_MAX: usize = 16;
/// Deliveries that read their position from the store at the same time. After a restart there may
/// be thousands, and calls read the store too.
pub const PUSH_STARTS_MAX: usize = 16;
/// Bytes read of a webhook's response, so that its connection can be reused.
pub const PUSH_ANSWER_BYTES_MAX: usize = 16 * 1024;

// Inside the mesh.

/// One gRPC message: a whole task of the largest size, and its envelope.
pub const GRPC_BYTES_MAX: usize = 80 * 1024 * 1024;
/// One message of a worker: a hello with all cards of a mesh and the attempts that the worker
/// holds. A batch of reports has `MESSAGE_BYTES_MAX`.
pub const HUB_MESSAGE_BYTES_MAX: usize = OFFERS_BYTES_MAX + MESSAGE_BYTES_MAX;
/// One call of a gateway or an agent: a message of the largest size, with metadata and the caller.
pub const CALL_BYTES_MAX: usize = BODY_BYTES_MAX;
/// Response headers and trailers. The details of a failure take 6 KiB of them as base64.
pub const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;
/// Flow-control window of a stream that carries many calls. One large task must not block it.
pub const STREAM_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Flow-control window of a whole connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Flow-control windows at a coordinator's port, where unread bytes are held in memory: of a stream
/// and of a connection.
pub const MESH_STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
pub const MESH_CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Flow-control windows of all connections of a coordinator's port, and of those of one address.
/// Above that a connection gets the smallest window that HTTP/2 allows and is slower with large
/// messages.
pub const MESH_WINDOWS_BYTES: usize = 128 * 1024 * 1024;
pub const MESH_WINDOWS_PER_ADDRESS_BYTES: usize = MESH_WINDOWS_BYTES / 2;
pub const WINDOW_BYTES_MIN: u32 = 65_535;
/// Streams that a peer resets before they are served. h2 closes the connection above 20, which a
/// burst of cancelled calls of one gateway reaches.
pub const PENDING_RESETS_MAX: usize = 4096;
/// Messages that wait to be written to one peer. A full outbox means that the peer is stuck.
pub const OUTBOX_MAX: usize = 8192;
/// Transitions that wait for the store's writer. A full queue slows callers down (backpressure).
pub const STORE_QUEUE_MAX: usize = 8192;
/// Transitions in one group commit: bounds the latency of the commit.
pub const STORE_BATCH_MAX: usize = 512;
/// Bytes of events in one group commit. A remote database must take them in time, and PostgreSQL
/// accepts no statement above 1 GiB.
pub const STORE_BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// After this long without an answer the store counts as unavailable, and waiting callers get an
/// error. A caller may wait twice as long, because a gateway repeats a send with an idempotency key
/// at another coordinator.
pub const STORE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// `retry_after` of a call that the store did not take.
pub const STORE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Events that wait for one subscriber. A slower subscriber continues from the store.
pub const SUBSCRIBER_EVENTS_MAX: usize = 256;
/// Flow-control credit: frames that the coordinator may send ahead of the reader of one stream.
pub const STREAM_CREDIT: u32 = 128;
/// Concurrent calls of one gateway.
pub const LINK_CALLS_MAX: usize = 16_384;
/// Concurrent streams of one gateway.
pub const STREAMS_MAX: usize = 8192;
/// Frames of all streams of one gateway that wait to be written. Streams wait for room
/// (backpressure).
pub const LINK_FRAMES_MAX: usize = 1024;
/// Coordinators that one gateway or worker uses. Each gateway keeps a link to every one.
pub const MEMBERS_MAX: usize = 64;
/// Outlier ejection: calls that a coordinator fails in a row, by its link or its store, before it
/// is ejected.
pub const EJECT_AFTER: u32 = 5;
/// Part of a gRPC message that is reserved for the envelope around its content.
pub const ENVELOPE_BYTES: usize = 64 * 1024;
/// Tasks that wait for a slot, per agent.
pub const AGENT_QUEUE_MAX: usize = 10_000;
/// Reports of an attempt that are not acknowledged yet. Further reports wait.
pub const UNACKED_REPORTS_MAX: usize = 64;
/// Reports in one message of a worker.
pub const REPORTS_PER_MESSAGE_MAX: usize = 256;
/// Agents that one worker offers.
pub const WORKER_AGENTS_MAX: usize = 256;
/// Attempts that one worker holds, running or waiting for children or a person. A worker with this
/// many gets no more.
pub const HELD_MAX: usize = 16_384;
/// Worker ids that one credential may introduce. A worker process introduces one.
pub const WORKER_IDS_PER_CREDENTIAL_MAX: usize = 10_000;
/// The display name of a worker.
pub const WORKER_NAME_BYTES_MAX: usize = 256;
/// An agent's card, and its extended card, each encoded. Every coordinator keeps cards in memory,
/// and the card is public.
pub const CARD_BYTES_MAX: usize = 64 * 1024;
/// Agents of a mesh: those that are offered, and those that were and are still remembered.
pub const AGENTS_MAX: usize = 1000;
/// The offers of all agents together, encoded, cards included. Every coordinator keeps them in
/// memory. It is 16 KiB for each agent; a usual card takes 2 KiB.
pub const OFFERS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Default number of tasks that one worker runs at the same time.
pub const WORKER_SLOTS: u32 = 64;
/// KEDA push-scaler streams. Each is polled on its own.
pub const SCALER_STREAMS_MAX: usize = 1024;
/// Metadata of a KEDA scaled object, encoded: the longest names of its agents, and room for the
/// rest.
pub const SCALER_BYTES_MAX: usize = 16 * 1024;
/// Agents of one KEDA scaled object. Its calls need no credential, and each name costs a look-up.
pub const SCALER_AGENTS_MAX: usize = 64;
/// Open connections of one server.
pub const CONNECTIONS_MAX: usize = 10_000;

// Quotas of one client address at a port, applied before authentication. Most are defaults of
// configuration keys.

/// Connections to a gateway from one address: a quarter, so that one address cannot lock out the
/// others.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = CONNECTIONS_MAX / 4;
/// Connections to a coordinator from one address: many workers may run on one machine.
pub const MESH_CONNECTIONS_PER_ADDRESS_MAX: usize = CONNECTIONS_MAX / 2;
/// Bytes of incomplete request bodies of all clients of a gateway. One address may have half of it,
/// and one connection a quarter.
pub const BODY_BUDGET_BYTES: usize = 64 * 1024 * 1024;
/// The smallest configurable budget: one connection needs room for one whole body.
pub const BODY_BUDGET_BYTES_MIN: usize = 48 * 1024 * 1024;
/// Bytes of incomplete gRPC messages at a coordinator: of all members of the mesh, of one address
/// and of one connection. A connection needs room for one whole message.
pub const MESSAGE_BUDGET_BYTES: usize = 128 * 1024 * 1024;
pub const MESSAGE_BUDGET_PER_ADDRESS_BYTES: usize = MESSAGE_BUDGET_BYTES / 2;
pub const MESSAGE_BUDGET_PER_CONNECTION_BYTES: usize = MESSAGE_BUDGET_BYTES / 4;
/// The body of a health check: the name of a service.
pub const HEALTH_BYTES_MAX: usize = 512;
/// Health watches in all, and from one address.
pub const HEALTH_WATCHES_MAX: usize = 1024;
pub const HEALTH_WATCHES_PER_ADDRESS_MAX: usize = 128;
/// KEDA streams from one address: KEDA opens all streams of a cluster from one.
pub const SCALER_STREAMS_PER_ADDRESS_MAX: usize = 256;
/// Unauthenticated calls to a coordinator in all, and from one address: health checks and KEDA.
pub const OPEN_CALLS_MAX: usize = 3072;
pub const OPEN_CALLS_PER_ADDRESS_MAX: usize = 768;
/// Concurrent calls of one caller at a gateway, streams included. A caller is a principal, or an
/// address where no token is configured. The rest of the streams stays free for others (fairness).
pub const CALLS_PER_CALLER_MAX: usize = STREAMS_MAX / 4 * 3;
/// Open HTTP/2 streams at a gateway, in all and from one address: as many as there may be calls.
/// Requests that are not read yet count.
pub const STREAMS_OPEN_MAX: usize = LINK_CALLS_MAX + STREAMS_MAX;
pub const STREAMS_OPEN_PER_ADDRESS_MAX: usize = STREAMS_MAX;
/// Open HTTP/2 streams at a coordinator, where all workers of one machine may share an address.
pub const MESH_STREAMS_OPEN_MAX: usize = 65_536;
pub const MESH_STREAMS_OPEN_PER_ADDRESS_MAX: usize = MESH_STREAMS_OPEN_MAX / 2;
/// Connections to the admin port, and open streams there, in all and from one address.
pub const ADMIN_CONNECTIONS_MAX: usize = 1024;
pub const ADMIN_CONNECTIONS_PER_ADDRESS_MAX: usize = ADMIN_CONNECTIONS_MAX / 4;
/// Bytes of unread responses on a public port, in all and from one address, each with the overhead
/// of its stream.
pub const UNREAD_BYTES_MAX: usize = 32 * 1024 * 1024;
pub const UNREAD_BYTES_PER_ADDRESS_MAX: usize = UNREAD_BYTES_MAX / 4;
pub const UNREAD_ANSWER_OVERHEAD: usize = 4 * 1024;
/// Concurrent fetches of agent cards by a gateway in all, and for one address.
pub const CARD_FETCHES_MAX: usize = 64;
pub const CARD_FETCHES_PER_ADDRESS_MAX: usize = 16;
/// Agent cards in the cache of a gateway.
pub const CARDS_CACHED_MAX: usize = 1024;
/// Flow-control windows of a public port, of a stream and of a connection. Received bytes are in
/// memory before the gateway reads them.
pub const PUBLIC_STREAM_WINDOW_BYTES: u32 = 256 * 1024;
pub const PUBLIC_CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Resets on a connection of a public port: before a stream is served, and because of errors of the
/// peer. These are h2's own defaults against rapid reset.
pub const PUBLIC_RESETS_MAX: (usize, usize) = (20, 1024);
/// Open streams of one HTTP/2 connection, inside the mesh and on a public port.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 4096;
pub const PUBLIC_STREAMS_PER_CONNECTION_MAX: u32 = 1024;
/// Approximate memory of a response without a body that waits in an HTTP/2 connection.
pub const BLOCKED_ANSWER_BYTES: usize = 1024;
/// Headers of a request. HTTP/2 adds 32 bytes for each header.
pub const REQUEST_HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Approximate memory of one header beside its name and value. Compressed (HPACK) a header can be
/// one byte.
pub const HEADER_OVERHEAD_BYTES: usize = 128;
/// Approximate memory of a waiting request beside its head and body.
pub const WAITING_REQUEST_BYTES: usize = 8 * 1024;
/// Bytes of large request heads at a coordinator, in all and from one address.
pub const HEAD_BYTES_MAX: usize = 32 * 1024 * 1024;
pub const HEAD_BYTES_PER_ADDRESS_MAX: usize = HEAD_BYTES_MAX / 4;
/// A head up to this size is not charged: it is that of an ordinary request.
pub const HEAD_FREE_BYTES: usize = 8 * 1024;

// Views of operators.

/// Tasks or events on one page.
pub const VIEW_PAGE_MAX: usize = 500;
/// Parts of a time range in one answer: more than any screen shows.
pub const BUCKETS_MAX: usize = 500;
/// Bucket widths for which activity is cached: a few screens at the same time.
pub const ACTIVITY_WIDTHS_MAX: usize = 8;
/// The most frequent kinds of failure, by reason and origin.
pub const FAILURE_KINDS_MAX: usize = 200;
/// Changed tasks in one message of a change feed. A larger change is reported as "too many".
pub const WATCH_TASKS_MAX: usize = 1000;
/// Messages that one watcher may lag behind. A slower watcher reads the list again.
pub const WATCH_BATCHES_MAX: usize = 8;

// Metrics.

/// Agents with metric series of their own. The others share one.
pub const METRIC_AGENTS_MAX: usize = 200;
/// Series of one metric. Further label values share one series.
pub const METRIC_SERIES_MAX: usize = 2000;

// Times.

/// Connecting to a peer.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// From the first byte of a request to the end of its headers.
pub const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the name resolution of the coordinators: as long as a cluster's DNS is cached.
pub const MEMBERS_REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two name resolutions when connections are lost.
pub const MEMBERS_REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// Outlier ejection: the first and the longest time for which a failing coordinator is ejected.
pub const EJECT_MIN: Duration = Duration::from_secs(1);
pub const EJECT_MAX: Duration = Duration::from_secs(30);
/// Time in which a gateway resumes an interrupted stream or send at another coordinator. Longer
/// than the restart of a coordinator, shorter than the read timeout of a client.
pub const RESUME_TIMEOUT: Duration = Duration::from_secs(15);
/// The pauses between two attempts to resume.
pub const RESUME_BACKOFF_MIN: Duration = Duration::from_millis(50);
pub const RESUME_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// An HTTP/2 connection to a public port without open streams is closed after this. Longer than the
/// pauses of a polling client.
pub const IDLE_CONNECTION: Duration = Duration::from_secs(120);
/// Age at which a cached agent card is fetched again, and for how much longer a stale card is
/// served while too many others are being fetched.
pub const CARD_TTL: Duration = Duration::from_secs(1);
pub const CARD_STALE_TTL: Duration = Duration::from_secs(60);
/// The same for an agent that does not exist. It may be offered at any moment.
pub const CARD_MISSING_TTL: Duration = Duration::from_millis(100);
/// One call that fetches an agent card.
pub const CARD_FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an abandoned call counts when the coordinator does not confirm its end.
pub const ABANDONED_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// From the headers to the end of the body.
pub const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two pings on an idle HTTP/2 connection inside the mesh.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Between two pings to a server outside the mesh. Common servers close the connection of clients
/// that ping more often than every five minutes.
pub const EXTERNAL_PING_INTERVAL: Duration = Duration::from_secs(330);
/// A peer that does not answer a ping for this long counts as dead.
pub const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two comments on an idle SSE stream. HTTP libraries time out after 5 s of silence by
/// default, and the official clients keep the default.
pub const SSE_KEEP_ALIVE: Duration = Duration::from_secs(4);
/// Between two messages of a change feed: a faster one would flicker.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// The longest pause between two attempts to reach a webhook.
pub const PUSH_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// The longest pause that a webhook may ask for by `Retry-After`.
pub const PUSH_RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// The largest configurable pause before a retry, and the largest open time of a circuit breaker.
pub const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(60 * 60);
/// Time in which a reader must take bytes of a stream while some wait for it.
pub const READER_STALL: Duration = Duration::from_secs(60);
/// Time after a stall in which the reader may return and read the last event of the stream.
pub const READER_RETURN_TIMEOUT: Duration = Duration::from_secs(15);
/// Retention of the binding of a worker id to its credential, after a coordinator last saw the
/// worker.
pub const WORKER_ID_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// The same for a credential at its limit that introduces another id.
pub const WORKER_ID_STALE: Duration = Duration::from_secs(60 * 60);
/// Between two renewals of the bindings of attached workers.
pub const WORKER_ID_RENEWAL: Duration = Duration::from_secs(10 * 60);
/// Between two heartbeats of a worker. After three missed ones the worker is dead.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long the tasks of a disconnected worker wait for it. Longer than it takes the worker to find
/// a dead address and to try the next.
pub const REATTACH_GRACE: Duration = Duration::from_secs(10);
/// Between two polls of the demand for KEDA push scalers: short beside the start of a worker.
pub const SCALER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Between two polls of a coordinator's health for a health watch: short beside the failover of its
/// callers.
pub const HEALTH_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long a watch of a task by a peer coordinator counts, and the largest number of watched
/// tasks.
pub const PEER_WATCH_TTL: Duration = Duration::from_secs(60);
pub const PEER_WATCHES_MAX: usize = 10_000;
/// Time in which a leaving coordinator tries to give up its lease.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// From a coordinator's announcement of its shutdown to the first refused call.
pub const LEAVE_NOTICE: Duration = Duration::from_millis(250);
/// `retry_after` of a call whose task is moving to another coordinator.
pub const MOVED_RETRY_AFTER: Duration = Duration::from_millis(200);
/// Time for an agent to stop after a cancel before its attempt is aborted.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// Age at which a cancelled attempt counts as orphaned: its worker should have aborted and reported
/// it.
pub const ORPHANED_AFTER: Duration = Duration::from_millis(5500);
/// From the first signal to the end of the process.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
