//! The log line of a failure. `tests/failures/spans.rs` covers its span.

use std::{io, sync::Arc};

use faultline_proto::v1::report::Body;
use parking_lot::Mutex;
use serde_json::Value;

use super::fake_coordinator::Harness;
use crate::{Agent, Context, Error, Offer};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

struct Leaky;

impl Agent for Leaky {
    async fn run(&self, _: &Context) -> Result<(), Error> {
        Err("password=hunter2")?
    }
}

#[tokio::test]
async fn failure_is_logged_once_and_in_full() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
    // Global, because tracing caches the interest of each call site: with a subscriber for this
    // thread alone, a thread of another test could disable the call site.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let (_harness, mut conn) = Harness::start(vec![Offer::new("leaky", Leaky)]).await;
    let task = conn.assign("leaky", "").await;
    let bodies = conn.until_final(&task).await;
    let [Body::Failed(failure)] = bodies.as_slice() else { panic!("{bodies:?}") };

    let ours = |line: &Value| line["fields"]["task.id"] == task.id.to_string();
    let lines: Vec<_> = log.lines().into_iter().filter(ours).collect();
    let warnings: Vec<_> = lines.iter().filter(|line| line["level"] == "WARN").collect();
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    let fields = &warning["fields"];
    assert_eq!(fields["failure.id"], failure.id.as_str());
    assert_eq!(fields["task.id"], task.id.to_string());
    assert_eq!(fields["trace.id"], failure.trace_id.as_str());
    assert_eq!(fields["reason"], "UNKNOWN");
    assert_eq!(fields["detail"], "password=hunter2");
}
