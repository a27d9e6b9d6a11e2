//! The log: lines for people or machines on stderr and, on request, OTLP log records. A line has
//! the ids of the trace and the task in whose context it is written.

use std::{
    fmt::{self, Write as _},
    io::IsTerminal,
    sync::Arc,
};

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    field::MakeExt,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{self, Format, JsonFields, Writer},
    },
    layer::Context,
    registry::LookupSpan,
};

use super::TraceContext;
use super::{bridge, export_queue, wire};

/// The task that code works on while it runs, for the ids in its log lines.
pub trait LogContext: Send + Sync {
    fn trace(&self) -> TraceContext;
    fn task(&self) -> &str;
}

tokio::task_local! {
    static CONTEXT: Arc<dyn LogContext>;
}

/// Runs `future` with the ids of `work` in its log lines. Spans that it records become children of
/// the span of `work`.
pub fn with_log_context<F: Future>(
    work: Arc<dyn LogContext>,
    future: F,
) -> impl Future<Output = F::Output> {
    CONTEXT.scope(Arc::clone(&work), bridge::below(work, future))
}

pub(super) fn has_context() -> bool {
    CONTEXT.try_with(|_| ()).is_ok()
}

fn work() -> Option<Arc<dyn LogContext>> {
    CONTEXT.try_with(Arc::clone).ok()
}

pub(super) fn layer<S>(filter: EnvFilter, json: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let ansi = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    if json {
        let inner = format::format().json().flatten_event(true);
        let format = WithIds { inner, json };
        let lines = lines.fmt_fields(JsonFields::new()).event_format(format);
        lines.with_filter(filter).boxed()
    } else {
        let inner: Format = format::format().with_ansi(ansi);
        let lines = lines.with_ansi(ansi).fmt_fields(escaped_fields());
        lines.event_format(WithIds { inner, json }).with_filter(filter).boxed()
    }
}

/// Messages and values of text lines. A value may come from the network, so control characters are
/// escaped: no value begins a line of its own (log injection) or reaches the terminal as an escape
/// sequence.
fn escaped_fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
    let field = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let name = field.name();
        if name != "message" {
            let name = name.strip_prefix("r#").unwrap_or(name);
            if writer.has_ansi_escapes() {
                write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?
            } else {
                write!(writer, "{name}=")?
            }
        }
        write!(Escaped(writer), "{value:?}")
    };
    format::debug_fn(field).delimited(" ")
}

/// Escapes characters that control a terminal or split a line.
struct Escaped<'a, 'w>(&'a mut Writer<'w>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0;
        for (at, found) in text.char_indices().filter(|(_, found)| is_unprintable(*found)) {
            self.0.write_str(&text[plain..at])?;
            write!(self.0, "{}", found.escape_default())?;
            plain = at + found.len_utf8();
        }
        self.0.write_str(&text[plain..])
    }
}

/// A control character, a line or paragraph separator, or a change of the direction of writing.
fn is_unprintable(found: char) -> bool {
    found.is_control() || matches!(found, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A line format with the ids of the log context.
struct WithIds<F> {
    inner: F,
    json: bool,
}

impl<S, N, F> FormatEvent<S, N> for WithIds<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // An explicit `trace.id` field takes precedence.
        let named = event.metadata().fields().field("trace.id").is_some();
        let Some(work) = work().filter(|_| !named) else {
            return self.inner.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        let trace = work.trace();
        let trace_id = trace.trace_id();
        let span_id = trace.span_id();
        let task = work.task();
        let line = line.trim_end();
        match line.strip_suffix('}').filter(|_| self.json) {
            Some(open) => writeln!(
                writer,
                r#"{open},"trace.id":"{trace_id}","span.id":"{span_id}","task.id":"{task}"}}"#
            ),
            None => writeln!(writer, "{line} trace.id={trace_id} span.id={span_id} task.id={task}"),
        }
    }
}

/// The log lines as OTLP log records.
pub(super) struct OtlpLayer;

impl<S: Subscriber> Layer<S> for OtlpLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(queue) = export_queue::logs() else { return };
        let mut record = Record::default();
        event.record(&mut record);
        let metadata = event.metadata();
        let (number, name) = severity(*metadata.level());
        let out = &mut record.out;
        wire::fixed64(out, 1, wire::now());
        wire::number(out, 2, number);
        wire::bytes(out, 3, name.as_bytes());
        wire::attribute(out, 6, "log.target", metadata.target().into());
        wire::nested(out, 5, |out| wire::bytes(out, 1, record.message.as_bytes()));
        let context = work().map(|work| {
            wire::attribute(out, 6, "a2a.task.id", work.task().into());
            work.trace()
        });
        if let Some(context) = context.or(record.trace) {
            wire::bytes(out, 9, &context.trace_bytes());
            if context.has_span() {
                wire::bytes(out, 10, &context.span_bytes());
            }
            wire::fixed32(out, 8, context.flags().into());
        }
        queue.push(out);
    }
}

fn severity(level: Level) -> (u64, &'static str) {
    match level {
        Level::ERROR => (17, "ERROR"),
        Level::WARN => (13, "WARN"),
        Level::INFO => (9, "INFO"),
        Level::DEBUG => (5, "DEBUG"),
        Level::TRACE => (1, "TRACE"),
    }
}

#[derive(Default)]
struct Record {
    out: Vec<u8>,
    message: String,
    /// The trace of an explicit `trace.id` field.
    trace: Option<TraceContext>,
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, text: &str) {
        match field.name() {
            "message" => text.clone_into(&mut self.message),
            "trace.id" => {
                // The line names no span, so the record has none.
                let context = format!("00-{text}-0000000000000001-01").parse::<TraceContext>();
                self.trace = context.ok().map(|context| context.without_span());
            }
            name => wire::attribute(&mut self.out, 6, name, text.into()),
        }
    }

    fn record_i64(&mut self, field: &Field, number: i64) {
        wire::attribute(&mut self.out, 6, field.name(), number.into());
    }

    fn record_u64(&mut self, field: &Field, number: u64) {
        self.record_i64(field, i64::try_from(number).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, flag: bool) {
        wire::attribute(&mut self.out, 6, field.name(), flag.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

#[cfg(test)]
mod tests;
