//! Ids in log lines and escaped values.

use std::{io, sync::Mutex};

use super::*;

struct Job;

impl LogContext for Job {
    fn trace(&self) -> TraceContext {
        TraceContext::read("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
    }

    fn task(&self) -> &str {
        "t-1"
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn subscribe<N, F>(fields: N, format: F) -> (Lines, tracing::subscriber::DefaultGuard)
where
    N: for<'a> FormatFields<'a> + Send + Sync + 'static,
    F: FormatEvent<tracing_subscriber::Registry, N> + Send + Sync + 'static,
{
    let lines = Lines::default();
    let writer = lines.clone();
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .fmt_fields(fields)
        .event_format(format)
        .with_writer(move || writer.clone());
    let subscriber =
        tracing_subscriber::layer::SubscriberExt::with(tracing_subscriber::registry(), layer);
    (lines, tracing::subscriber::set_default(subscriber))
}

/// A line outside of any context, one inside, and one with an explicit trace id.
async fn logged<F>(format: F) -> Vec<String>
where
    F: FormatEvent<tracing_subscriber::Registry, JsonFields> + Send + Sync + 'static,
{
    let (lines, _guard) = subscribe(JsonFields::new(), format);
    tracing::info!("outside");
    with_log_context(Arc::new(Job), async {
        tracing::info!(n = 1, "inside");
        tracing::info!(trace.id = "another", "itself");
    })
    .await;
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn log_line_has_the_ids_of_its_task_and_trace() {
    let inner = format::format().json().flatten_event(true);
    let lines = logged(WithIds { inner, json: true }).await;
    assert!(lines[0].ends_with(r#"telemetry::log::tests"}"#), "{lines:?}");
    let ids = r#","span.id":"00f067aa0ba902b7","task.id":"t-1"}"#;
    let trace = r#","trace.id":"4bf92f3577b34da6a3ce929d0e0e4736""#;
    assert!(lines[1].ends_with(&format!("{trace}{ids}")), "{lines:?}");
    assert!(lines[1].contains("inside"), "{lines:?}");
    assert!(lines[2].contains(r#""trace.id":"another""#), "{lines:?}");
    assert_eq!(lines[2].matches("trace.id").count(), 1, "{lines:?}");
    let inner: Format = format::format().with_ansi(false);
    let lines = logged(WithIds { inner, json: false }).await;
    let ids = " trace.id=4bf92f3577b34da6a3ce929d0e0e4736 span.id=00f067aa0ba902b7 task.id=t-1";
    assert!(!lines[0].contains("trace.id") && lines[1].ends_with(ids), "{lines:?}");
}

#[test]
fn text_lines_escape_control_characters() {
    let inner: Format = format::format().with_ansi(false);
    let (lines, guard) = subscribe(escaped_fields(), WithIds { inner, json: false });
    let forged = "x\r\n2026-01-01 ERROR forged \x1b[2J\u{9b}31m\u{202e}\u{2028}ü";
    let escaped = r"x\r\n2026-01-01 ERROR forged \u{1b}[2J\u{9b}31m\u{202e}\u{2028}ü";
    tracing::info!(shown = %forged, debugged = ?forged, text = forged, "got {forged}");
    let span = tracing::info_span!("call", peer = %forged);
    span.in_scope(|| tracing::info!("plain \\ ü"));
    drop(guard);
    let bytes = lines.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(!text.contains(|c: char| c != '\n' && is_unprintable(c)), "{text:?}");
    assert!(lines[0].contains(&format!("got {escaped} shown={escaped} ")), "{text}");
    assert!(lines[0].contains(&format!(r#" text="{escaped}""#)), "{text}");
    assert!(lines[1].contains(&format!("peer={escaped}")), "{text}");
    assert!(lines[1].ends_with("plain \\ ü"), "{text}");
}
