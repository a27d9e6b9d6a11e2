//! Every bound of the mesh, one constant a line: the number, its unit in the name, and why.

use std::time::Duration;

// What a caller may send.

/// One message, encoded. Larger content belongs behind a URL.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// One HTTP request body: a message at its limit, doubled by base64 and escapes.
pub const BODY_BYTES_MAX: usize = 9 * 1024 * 1024;
/// `data` and metadata: what ProtoJSON reads. Protobuf nests three messages per level and prost
/// stops at 100.
pub const DATA_DEPTH_MAX: usize = faultline_proto::json::VALUE_DEPTH_MAX;
/// Client-made strings that become keys: context ids, message ids.
pub const KEY_BYTES_MAX: usize = 256;
/// Parts of one message.
pub const PARTS_MAX: usize = 1024;
/// Each metadata that comes with a message, encoded. It is stored and shown with the task.
pub const METADATA_BYTES_MAX: usize = 64 * 1024;

/// How long the key of a send is kept: a repeat later than that is a new send.
pub const IDEMPOTENCY_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a stop is kept that no worker was there to take, and the longest pause between two
/// tries to deliver it.
pub const DEFERRED_CANCEL_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
pub const DEFERRED_CANCEL_BACKOFF_MAX: Duration = Duration::from_secs(10 * 60);

/// The `tracestate` that comes with a trace. The standard asks for no more to be handed on.
pub const TRACESTATE_BYTES_MAX: usize = 512;

// What waits to be exported.

/// Spans that wait for the collector, at half a KiB each; then the oldest go. OpenTelemetry's usual
/// 2048 are the work of a twentieth of a second here.
pub const OTLP_QUEUE_MAX: usize = 16_384;
/// Spans in one request: collectors take 4 MiB.
pub const OTLP_BATCH_MAX: usize = 2048;
/// How long one that came alone waits for others.
pub const OTLP_DELAY: Duration = Duration::from_secs(2);
/// One request to the collector.
pub const OTLP_TIMEOUT: Duration = Duration::from_secs(10);
/// What the end of the process waits for the collector.
pub const OTLP_FLUSH: Duration = Duration::from_secs(5);

// What a network inside one process holds.

/// Connections that wait to be accepted; whoever comes then waits to be one of them.
pub const NETWORK_BACKLOG: usize = 64;
/// What one side may say before the other has read it, as a socket would keep.
pub const NETWORK_BUFFER_BYTES: usize = 256 * 1024;

// What a task may hold.

/// All artifacts of one task together, encoded.
pub const TASK_ARTIFACT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// All messages of one task together, encoded: each attempt is given them again.
pub const TASK_MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Artifacts on one page of a list, encoded. The page ends early above it.
pub const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Tasks counted for a list: with more, `totalSize` says so many. Whoever has a million does not
/// wait for the count of them with every page.
pub const LIST_TOTAL_MAX: usize = 10_000;
/// Different artifacts of one task.
pub const TASK_ARTIFACTS_MAX: usize = 1024;
/// Events of one task. A chunk is an event, so this bounds a stream that never ends.
pub const TASK_EVENTS_MAX: u64 = 1_000_000;
/// What a worker may save to go on from.
pub const CHECKPOINT_BYTES_MAX: usize = 1024 * 1024;

/// Failures that one task keeps although they did not end it; more are counted.
pub const TOLERATED_MAX: usize = 16;
/// The same together, encoded: they are shown with the task, like metadata.
pub const TOLERATED_BYTES_MAX: usize = 64 * 1024;
/// Questions that one task may have open: what a person could still look through.
pub const OPEN_QUESTIONS_MAX: usize = 64;
/// All of them together, encoded: each status lists them. One alone may be as large as a message.
pub const OPEN_QUESTIONS_BYTES_MAX: usize = 1024 * 1024;

// What a task may start.

/// Agents that one fan-out may ask.
pub const FANOUT_BRANCHES_MAX: usize = 64;

/// How many delegations may lie above a task. Deeper is most likely a circle.
pub const DELEGATION_DEPTH_MAX: u32 = 16;
/// Live tasks below one that was not delegated itself: what one cancel has to reach, in one commit.
pub const DESCENDANTS_MAX: usize = 1000;
/// Children of a task that are shown with it, the oldest: what it started in all has no bound.
pub const CHILDREN_SHOWN_MAX: usize = 1000;

// What a task may tell webhooks.

/// Push configurations of one task.
pub const PUSH_CONFIGS_MAX: usize = 16;
/// The address of a webhook.
pub const PUSH_URL_BYTES_MAX: usize = 2 * 1024;
/// Its token, and its credentials: each goes into a header, which servers bound at 8 KiB.
pub const PUSH_SECRET_BYTES_MAX: usize = 4 * 1024;
/// Notifications on their way at the same time, to all webhooks…
pub const PUSH_REQUESTS_MAX: usize = 256;
/// …and to one host: a webhook that hangs must not take the places of those that do not.
pub const PUSH_REQUESTS_PER_HOST_MAX: usize = 16;
/// Deliveries that read the store for their place at the same time: after a restart there may be
/// thousands, and calls read it too.
pub const PUSH_STARTS_MAX: usize = 16;
/// What is read of a webhook's answer, so that the connection can be used again.
pub const PUSH_ANSWER_BYTES_MAX: usize = 16 * 1024;

// Inside the mesh.

/// One gRPC message: a whole task with all it may hold, and room for its envelope.
pub const GRPC_BYTES_MAX: usize = 80 * 1024 * 1024;
/// One message of a worker: a hello with all cards that a mesh may have and the attempts that the
/// worker holds. A batch of reports has `MESSAGE_BYTES_MAX`.
pub const HUB_MESSAGE_BYTES_MAX: usize = OFFERS_BYTES_MAX + MESSAGE_BYTES_MAX;
/// One call of a gateway or an agent: a message at its limit, with metadata and what is said of the
/// caller.
pub const CALL_BYTES_MAX: usize = BODY_BYTES_MAX;
/// Response headers and trailers; a failure's details take 6 KiB of it as base64.
pub const HEADER_LIST_BYTES_MAX: u32 = 64 * 1024;
/// Flow-control window of a stream that carries many calls: one large task must not stop it.
pub const STREAM_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Window of a whole connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// The same of a coordinator's port, where what a peer has sent unread is in memory.
pub const MESH_STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
pub const MESH_CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// Windows of all connections of a coordinator's port, and of those of one address. A connection
/// above that has the smallest window that HTTP/2 allows: it is slower with large messages.
pub const MESH_WINDOWS_BYTES: usize = 128 * 1024 * 1024;
pub const MESH_WINDOWS_PER_ADDRESS_BYTES: usize = MESH_WINDOWS_BYTES / 2;
pub const WINDOW_BYTES_MIN: u32 = 65_535;
/// Streams that peers reset before they were served. h2 closes the connection above 20, which a
/// burst of impatient clients of one gateway reaches.
pub const PENDING_RESETS_MAX: usize = 4096;
/// Messages that wait to be written to one peer before it counts as stuck.
pub const OUTBOX_MAX: usize = 8192;
/// Transitions that wait for the store's writer. A full queue slows callers down.
pub const STORE_QUEUE_MAX: usize = 8192;
/// Transitions in one commit: keeps the worst latency of a commit in bounds.
pub const STORE_BATCH_MAX: usize = 512;
/// The same in bytes of their events. A database that is far away must take them in time, and
/// PostgreSQL takes no statement above 1 GiB.
pub const STORE_BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A store that does not answer for so long is away: callers that wait for it are answered without
/// it. A caller may wait twice as long: a gateway repeats a send with a key at another coordinator.
pub const STORE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// When a call that the store did not take may be repeated.
pub const STORE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Events that wait for one subscriber; a slower one reads on from the store.
pub const SUBSCRIBER_EVENTS_MAX: usize = 256;
/// Frames the coordinator may send ahead of what the reader of one stream has taken.
pub const STREAM_CREDIT: u32 = 128;
/// Calls of one gateway that run at the same time.
pub const LINK_CALLS_MAX: usize = 16_384;
/// Streams of one gateway that are open at the same time.
pub const STREAMS_MAX: usize = 8192;
/// Frames of all streams of one gateway that wait to be written; the streams wait for room.
pub const LINK_FRAMES_MAX: usize = 1024;
/// Coordinators that one gateway or worker knows of: each gateway keeps a link to every one.
pub const MEMBERS_MAX: usize = 64;
/// Calls that a coordinator may fail in a row, by its link or its store, before it is left alone.
pub const EJECT_AFTER: u32 = 5;
/// What is left free in a gRPC message for what is put around its content.
pub const ENVELOPE_BYTES: usize = 64 * 1024;
/// Tasks that wait for a slot, per agent.
pub const AGENT_QUEUE_MAX: usize = 10_000;
/// Reports an agent may be ahead of their acknowledgements before it has to wait.
pub const UNACKED_REPORTS_MAX: usize = 64;
/// Reports in one message of a worker.
pub const REPORTS_PER_MESSAGE_MAX: usize = 256;
/// Agents that one worker offers.
pub const WORKER_AGENTS_MAX: usize = 256;
/// Attempts that one worker holds: those that compute, and those that wait for others or for a
/// person. A worker that has so many is given no more.
pub const HELD_MAX: usize = 16_384;
/// Worker ids that one credential may have introduced. A worker process introduces one.
pub const WORKER_IDS_PER_CREDENTIAL_MAX: usize = 10_000;
/// The name of a worker, for people.
pub const WORKER_NAME_BYTES_MAX: usize = 256;
/// An agent's card, and its extended card, each encoded. They are kept in memory by every
/// coordinator, and the card is shown to everybody.
pub const CARD_BYTES_MAX: usize = 64 * 1024;
/// Agents that a mesh knows: those that are offered, and those that were and are not forgotten yet.
pub const AGENTS_MAX: usize = 1000;
/// The offers of all of them together, encoded, cards included: every coordinator keeps them in
/// memory. It is 16 KiB for each agent; a usual card takes 2 KiB.
pub const OFFERS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Tasks that one worker computes at once, unless it says otherwise.
pub const WORKER_SLOTS: u32 = 64;
/// Scaled objects that are told when there is something to do; each is looked after on its own.
pub const SCALER_STREAMS_MAX: usize = 1024;
/// Metadata of a scaled object, encoded: the longest names of its agents, and room for the rest.
pub const SCALER_BYTES_MAX: usize = 16 * 1024;
/// Agents of one scaled object: its calls need no credential, and each name costs a look-up.
pub const SCALER_AGENTS_MAX: usize = 64;
/// Open connections of one server.
pub const CONNECTIONS_MAX: usize = 10_000;

// Limits of one client address at a port, which apply before authentication. Most of them are
// defaults that can be configured.

/// Connections to a gateway: a quarter, so that one address cannot lock out the others.
pub const CONNECTIONS_PER_ADDRESS_MAX: usize = CONNECTIONS_MAX / 4;
/// Connections to a coordinator: many workers may run on one machine.
pub const MESH_CONNECTIONS_PER_ADDRESS_MAX: usize = CONNECTIONS_MAX / 2;
/// Bytes of requests that wait for the rest of their body, of all clients of a gateway together.
/// One address may have half of it, and one connection a quarter.
pub const BODY_BUDGET_BYTES: usize = 64 * 1024 * 1024;
/// The least that can be configured: one connection must have room for one whole body.
pub const BODY_BUDGET_BYTES_MIN: usize = 48 * 1024 * 1024;
/// Bytes of gRPC messages at a coordinator that have not arrived whole, of all members of the mesh
/// together, of one address and of one connection, which must have room for one whole message.
pub const MESSAGE_BUDGET_BYTES: usize = 128 * 1024 * 1024;
pub const MESSAGE_BUDGET_PER_ADDRESS_BYTES: usize = MESSAGE_BUDGET_BYTES / 2;
pub const MESSAGE_BUDGET_PER_CONNECTION_BYTES: usize = MESSAGE_BUDGET_BYTES / 4;
/// The body of a health check: a service's name.
pub const HEALTH_BYTES_MAX: usize = 512;
/// Watches of health in all, and of one address.
pub const HEALTH_WATCHES_MAX: usize = 1024;
pub const HEALTH_WATCHES_PER_ADDRESS_MAX: usize = 128;
/// Scaled objects of one address: KEDA asks for all of a cluster from one.
pub const SCALER_STREAMS_PER_ADDRESS_MAX: usize = 256;
/// Calls without a credential to a coordinator in all, and of one address: health checks, and what
/// KEDA asks.
pub const OPEN_CALLS_MAX: usize = 3072;
pub const OPEN_CALLS_PER_ADDRESS_MAX: usize = 768;
/// Calls of one caller that a gateway has under way, streams among them. A caller is a principal,
/// or an address where no token is configured. Others have room for as many streams as this leaves.
pub const CALLS_PER_CALLER_MAX: usize = STREAMS_MAX / 4 * 3;
/// Open streams of HTTP/2 at a gateway, in all and of one address: as many as its calls may be.
/// Requests that came and were not looked at yet are among them.
pub const STREAMS_OPEN_MAX: usize = LINK_CALLS_MAX + STREAMS_MAX;
pub const STREAMS_OPEN_PER_ADDRESS_MAX: usize = STREAMS_MAX;
/// The same at a coordinator, where all workers of one machine may have one address.
pub const MESH_STREAMS_OPEN_MAX: usize = 65_536;
pub const MESH_STREAMS_OPEN_PER_ADDRESS_MAX: usize = MESH_STREAMS_OPEN_MAX / 2;
/// Connections to the port for probes and metrics, and open streams there, in all and of one
/// address.
pub const ADMIN_CONNECTIONS_MAX: usize = 1024;
pub const ADMIN_CONNECTIONS_PER_ADDRESS_MAX: usize = ADMIN_CONNECTIONS_MAX / 4;
/// Bytes of answers to strangers that wait to be read, in all and of one address. Each counts with
/// what its stream takes besides.
pub const UNREAD_BYTES_MAX: usize = 32 * 1024 * 1024;
pub const UNREAD_BYTES_PER_ADDRESS_MAX: usize = UNREAD_BYTES_MAX / 4;
pub const UNREAD_ANSWER_OVERHEAD: usize = 4 * 1024;
/// Agent cards that a gateway fetches at the same time in all, and for one address.
pub const CARD_FETCHES_MAX: usize = 64;
pub const CARD_FETCHES_PER_ADDRESS_MAX: usize = 16;
/// Agent cards that a gateway keeps.
pub const CARDS_CACHED_MAX: usize = 1024;
/// Flow-control windows of a port that strangers reach, of a stream and of a connection. What was
/// sent is in memory before anybody has looked at it.
pub const PUBLIC_STREAM_WINDOW_BYTES: u32 = 256 * 1024;
pub const PUBLIC_CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Resets of a connection from strangers, before a stream was served and because of errors of the
/// peer: h2's own defaults against rapid reset.
pub const PUBLIC_RESETS_MAX: (usize, usize) = (20, 1024);
/// Open streams of one HTTP/2 connection, in the mesh and from strangers.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 4096;
pub const PUBLIC_STREAMS_PER_CONNECTION_MAX: u32 = 1024;
/// About the memory of an answer without a body that waits in an HTTP/2 connection.
pub const BLOCKED_ANSWER_BYTES: usize = 1024;
/// Headers of a request. HTTP/2 counts 32 bytes for each beside its name and value.
pub const REQUEST_HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// About the memory of one header beside its name and value. Compressed, it can be one byte.
pub const HEADER_OVERHEAD_BYTES: usize = 128;
/// About the memory of a request that waits, beside its head and body.
pub const WAITING_REQUEST_BYTES: usize = 8 * 1024;
/// Bytes of large heads at a coordinator, in all and of one address.
pub const HEAD_BYTES_MAX: usize = 32 * 1024 * 1024;
pub const HEAD_BYTES_PER_ADDRESS_MAX: usize = HEAD_BYTES_MAX / 4;
/// A head that takes no more than this is not charged: it is that of an ordinary request.
pub const HEAD_FREE_BYTES: usize = 8 * 1024;

// What operators are shown at once.

/// Tasks or events on one page.
pub const VIEW_PAGE_MAX: usize = 500;
/// Parts that time is divided into: more than that no screen shows.
pub const BUCKETS_MAX: usize = 500;
/// Widths of such parts of which is remembered what they held: a few screens at once.
pub const ACTIVITY_WIDTHS_MAX: usize = 8;
/// Kinds of failure, by reason and origin, the most frequent.
pub const FAILURE_KINDS_MAX: usize = 200;
/// Tasks that watchers are told of in one message; more is told as too much.
pub const WATCH_TASKS_MAX: usize = 1000;
/// Messages that one watcher may be behind. One that is slower reads the list again.
pub const WATCH_BATCHES_MAX: usize = 8;

// What is measured.

/// Agents that have numbers of their own; the others share theirs.
pub const METRIC_AGENTS_MAX: usize = 200;
/// Series of one metric: what comes then is counted as one.
pub const METRIC_SERIES_MAX: usize = 2000;

// Time.

/// To connect to a peer.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// From the first byte of a request to the end of its headers.
pub const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at who is behind the name of the coordinators: as long as a cluster's names
/// are cached.
pub const MEMBERS_REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two such looks, when connections are lost.
pub const MEMBERS_REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// How long a coordinator that failed too often is left alone, at first and after many rounds.
pub const EJECT_MIN: Duration = Duration::from_secs(1);
pub const EJECT_MAX: Duration = Duration::from_secs(30);
/// How long a gateway looks for another coordinator for a stream or a send that lost its own. More
/// than it takes one that died to start again, less than a client's patience with silence.
pub const RESUME_TIMEOUT: Duration = Duration::from_secs(15);
/// The pauses between two such tries.
pub const RESUME_BACKOFF_MIN: Duration = Duration::from_millis(50);
pub const RESUME_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long an HTTP/2 connection of a stranger may have no open stream before it is closed. More
/// than the pauses of a client that polls.
pub const IDLE_CONNECTION: Duration = Duration::from_secs(120);
/// How long a gateway answers with an agent card before it asks for it again, and for how much
/// longer it does so while too many others are being fetched.
pub const CARD_TTL: Duration = Duration::from_secs(1);
pub const CARD_STALE_TTL: Duration = Duration::from_secs(60);
/// The same for an agent that there is not, which may be offered at any moment.
pub const CARD_MISSING_TTL: Duration = Duration::from_millis(100);
/// One call for an agent card.
pub const CARD_FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call that its caller has left counts when the coordinator does not confirm it.
pub const ABANDONED_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// From the headers to the end of the body.
pub const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two pings of an idle HTTP/2 connection inside the mesh.
pub const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The same outside it: common servers hang up on clients that ask more than every five minutes.
pub const EXTERNAL_PING_INTERVAL: Duration = Duration::from_secs(330);
/// How long a ping may stay unanswered before the peer counts as dead.
pub const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two comments on an SSE stream that has nothing to say. HTTP libraries give up on a
/// silent one after 5 s unless they are told otherwise, and the official clients do not tell them.
pub const SSE_KEEP_ALIVE: Duration = Duration::from_secs(4);
/// Between two messages to an operator who watches: faster is flicker.
pub const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// Between two attempts to reach a webhook, at the most.
pub const PUSH_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// The same when the webhook itself asks for a pause by `Retry-After`.
pub const PUSH_RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// The longest pause before a failed task is tried again that can be configured, and the longest
/// time for which an agent is left alone.
pub const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(60 * 60);
/// How long a reader may take nothing of a stream while something waits for it.
pub const READER_STALL: Duration = Duration::from_secs(60);
/// How long one that was let go for that may then take to come back and hear of it.
pub const READER_RETURN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a worker id stays bound to its credential after a coordinator last knew the worker.
pub const WORKER_ID_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// The same where its credential has introduced as many as it may, and introduces another.
pub const WORKER_ID_STALE: Duration = Duration::from_secs(60 * 60);
/// Between two renewals of the bindings of the workers that a coordinator knows.
pub const WORKER_ID_RENEWAL: Duration = Duration::from_secs(10 * 60);
/// Between two heartbeats of a worker; three missed ones are a dead worker.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long a worker without a stream keeps its tasks. More than it takes to find out that an
/// address is dead and to try the next.
pub const REATTACH_GRACE: Duration = Duration::from_secs(10);
/// Between two looks whether there is something to do, for whoever starts workers then: short
/// beside the start of one.
pub const SCALER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks at how a coordinator is, for each who watches its health: short beside what it
/// takes to send calls elsewhere.
pub const HEALTH_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How long it counts that somebody follows a task at another coordinator, and of how many tasks
/// that is known.
pub const PEER_WATCH_TTL: Duration = Duration::from_secs(60);
pub const PEER_WATCHES_MAX: usize = 10_000;
/// How long a coordinator that leaves tries to give up its lease.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// From the word of a coordinator that it leaves to its taking nothing more.
pub const LEAVE_NOTICE: Duration = Duration::from_millis(250);
/// When a call may be made again whose task is just moving to another coordinator.
pub const MOVED_RETRY_AFTER: Duration = Duration::from_millis(200);
/// How long an agent that was told to stop may take before it is dropped.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// When one counts as an orphan: it should have been dropped, and its worker have said so.
pub const ORPHANED_AFTER: Duration = Duration::from_millis(5500);
/// From the first signal to the end of the process.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
