//! The HTTP client of webhooks: one request, the meaning of its response, and the pause before
//! the next attempt. It knows no tasks.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use faultline_chassis::{
    TraceContext,
    backoff::Backoff,
    dial::{Connector, Forbidden},
    error_chain::one_line,
    limits,
    metrics::Counters,
    telemetry::{Span, SpanKind, link},
    tls::Trust,
};
use faultline_proto::id::TaskId;
use http::{
    Request, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::webhooks::{Push, target::Target};

/// The shortest pause, whatever is configured: no tight loop.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The answer of a webhook to a notification.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Taken,
    /// To be tried again, after this long if it said so.
    NotNow {
        why: String,
        after: Option<Duration>,
    },
    /// Nothing that is sent there will ever be taken.
    Never {
        why: String,
    },
}

/// Carries notifications, so many at once.
pub(crate) struct Courier {
    pub(crate) rules: Push,
    client: Client<Connector, Full<Bytes>>,
    places: Semaphore,
    /// For deliveries that find out where they stand.
    pub(crate) openings: Semaphore,
    hosts: Mutex<HashMap<String, Weak<Semaphore>>>,
    deliveries: Counters<1>,
}

impl Courier {
    pub(crate) fn new(rules: Push, deliveries: Counters<1>) -> Self {
        let any = Connector::new(Trust::system());
        let connector = if rules.allow_private { any } else { any.public_only() };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(limits::PUSH_REQUESTS_PER_HOST_MAX)
            .build(connector);
        let places = Semaphore::new(limits::PUSH_REQUESTS_MAX);
        let openings = Semaphore::new(limits::PUSH_STARTS_MAX);
        // There from the beginning, so that the first of each is seen as one.
        for outcome in ["taken", "retried", "given_up"] {
            deliveries.with([outcome]);
        }
        Self { rules, client, places, openings, hosts: Mutex::default(), deliveries }
    }

    /// Counts the outcome of a notification.
    pub(crate) fn note(&self, outcome: &'static str) {
        self.deliveries.at([outcome], |counter| counter.add(1));
    }

    /// One attempt. Redirects are not followed: where they lead nobody has agreed to.
    pub(crate) async fn post(&self, target: &Target, body: Bytes, mut span: Span) -> Answer {
        let host = self.host(&target.host);
        // The permit of the host first: a slow host must not hold permits of others (fairness).
        let (Ok(_host), Ok(_place)) = (host.acquire().await, self.places.acquire().await) else {
            return Answer::NotNow { why: "no place to send from".to_owned(), after: None };
        };
        let request = request(target, body, span.context());
        let mut status = 0;
        let (since, patience) = (Instant::now(), Duration::from_millis(self.rules.timeout_ms));
        let answer = match timeout(patience, self.client.request(request)).await {
            Err(_) => Answer::NotNow { why: "no answer in time".to_owned(), after: None },
            Ok(Err(error)) => match Forbidden::find_in(&error) {
                Some(forbidden) => Answer::Never { why: forbidden.to_string() },
                None => Answer::NotNow { why: one_line(&error), after: None },
            },
            Ok(Ok(response)) => {
                status = response.status().as_u16();
                span.set("http.response.status_code", status);
                let answer = read(&response);
                // Reads the rest to keep the connection usable; the content does not matter.
                let rest = Limited::new(response.into_body(), limits::PUSH_ANSWER_BYTES_MAX);
                let _ = timeout(patience.saturating_sub(since.elapsed()), rest.collect()).await;
                answer
            }
        };
        if let Answer::NotNow { why, .. } | Answer::Never { why } = &answer {
            match status {
                0 => span.error("unanswered", why),
                status => span.error(&status.to_string(), why),
            };
        }
        answer
    }

    fn host(&self, name: &str) -> Arc<Semaphore> {
        let mut hosts = self.hosts.lock();
        if let Some(known) = hosts.get(name).and_then(Weak::upgrade) {
            return known;
        }
        hosts.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(limits::PUSH_REQUESTS_PER_HOST_MAX));
        hosts.insert(name.to_owned(), Arc::downgrade(&places));
        places
    }
}

/// One attempt to tell a webhook of a task; `before`: the one that was not taken.
pub(crate) fn span(
    target: &Target,
    run: &TraceContext,
    task: TaskId,
    before: Option<&TraceContext>,
) -> Span {
    let mut span = Span::begin(SpanKind::Client, run, format_args!("POST"));
    if span.is_recorded() {
        span.role("coordinator").set_text("a2a.task.id", format_args!("{task}"));
        span.set("http.request.method", "POST");
        span.set("server.address", &target.host);
        span.set("server.port", target.port());
    }
    if let Some(before) = before {
        span.link(before, link::RETRY_OF);
    }
    span
}

fn request(target: &Target, body: Bytes, trace: &TraceContext) -> Request<Full<Bytes>> {
    let mut request = Request::post(target.url.clone())
        .header(CONTENT_TYPE, "application/a2a+json")
        .header(USER_AGENT, concat!("faultline/", env!("CARGO_PKG_VERSION")))
        .header("a2a-version", "1.0")
        .body(Full::new(body))
        .expect("these headers are good and the URL was read before");
    request.headers_mut().extend(target.headers.clone());
    trace.inject(request.headers_mut());
    request
}

fn read<B>(response: &Response<B>) -> Answer {
    let status = response.status();
    if status.is_success() {
        return Answer::Taken;
    }
    let why = format!("it answered {status}");
    if status == StatusCode::GONE {
        return Answer::Never { why };
    }
    let seconds = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()?.parse().ok());
    let after = seconds.map(Duration::from_secs).map(|d| d.min(limits::PUSH_RETRY_AFTER_MAX));
    Answer::NotNow { why, after }
}

/// How long before the next attempt, `tried` having failed so far. `luck` is between 0 and 1 and
/// spreads those who failed together.
pub(crate) fn pause(first: Duration, tried: u32, luck: f64) -> Duration {
    let backoff = Backoff::new(first.max(PAUSE_MIN), limits::PUSH_BACKOFF_MAX);
    backoff.pause(tried.saturating_sub(1), luck)
}

#[cfg(test)]
mod tests {
    use faultline_chassis::Metrics;
    use faultline_proto::a2a::TaskPushNotificationConfig;

    use super::*;
    use crate::telemetry::metrics::Meters;

    fn answered(status: u16, retry_after: Option<&str>) -> Answer {
        let mut response = Response::builder().status(status);
        if let Some(value) = retry_after {
            response = response.header(RETRY_AFTER, value);
        }
        read(&response.body(()).unwrap())
    }

    #[test]
    fn webhook_accepts_by_2xx_and_ends_by_410() {
        for status in [200, 202, 204, 299] {
            assert_eq!(answered(status, None), Answer::Taken);
        }
        assert!(matches!(answered(410, None), Answer::Never { .. }));
        for status in [301, 307, 400, 401, 404, 429, 500, 503] {
            assert!(matches!(answered(status, None), Answer::NotNow { after: None, .. }));
        }
    }

    #[test]
    fn webhook_retry_after_is_obeyed_within_a_limit() {
        let after = |value| match answered(503, Some(value)) {
            Answer::NotNow { after, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("999999"), Some(limits::PUSH_RETRY_AFTER_MAX));
        assert_eq!(after("soon"), None);
    }

    #[tokio::test]
    async fn forbidden_address_ends_the_delivery() {
        let config = TaskPushNotificationConfig {
            url: "http://localhost:9/hook".to_owned(),
            ..Default::default()
        };
        let target = Target::of(&config).unwrap();
        let post = async |rules| {
            Courier::new(rules, Meters::new(&Metrics::default()).deliveries.clone())
                .post(&target, Bytes::new(), Span::none())
                .await
        };
        let refused = post(Push::default()).await;
        assert!(matches!(refused, Answer::Never { .. }), "{refused:?}");
        let allowed = post(Push { allow_private: true, ..Push::default() }).await;
        assert!(matches!(allowed, Answer::NotNow { .. }), "nobody listens there: {allowed:?}");
    }

    #[test]
    fn pauses_double_to_a_bound_and_spread() {
        let second = Duration::from_secs(1);
        let most = |tried| pause(second, tried, 1.0).as_millis();
        assert_eq!([1, 2, 3, 7, 8, 4000].map(most), [1000, 2000, 4000, 60_000, 60_000, 60_000]);
        assert_eq!(pause(second, 1, 0.0).as_millis(), 500);
        assert!(pause(Duration::ZERO, 1, 1.0) > Duration::ZERO);
    }
}
