//! A failure as text for people: reason, message, the hops from the caller down to the origin, and
//! the advice. Golden tests cover its lines.

use std::fmt::Write;

use faultline_proto::{
    Failure,
    advice::{Reader, Verdict, advise},
    reason,
    v1::{Branch, Cause},
};

use crate::output::{
    style::Style,
    text::{line, short, span, wrapped},
};

const COLUMNS: usize = 92;
const QUOTE_CHARS_MAX: usize = 56;

/// The whole card. `headline` names the failed operation: `task 0199… failed`.
pub fn render(failure: &Failure, headline: &str, reader: Reader, style: Style) -> String {
    render_with_advice(failure, headline, &advice(failure, reader), style)
}

/// The whole card with this advice.
pub fn render_with_advice(failure: &Failure, headline: &str, advice: &str, style: Style) -> String {
    let mut out = String::new();
    let reason = style.bold(line(&failure.reason));
    let facts = style.dim(format!("({})", facts(failure)));
    append(&mut out, format_args!("{} {headline}: {reason} {facts}\n", style.red("✗")));
    append(&mut out, format_args!("{}\n", wrapped(&failure.public_message, "  ", COLUMNS)));
    push_hops(failure, style, &mut out);
    for violation in &failure.violations {
        let text = format!("{}: {}", violation.field, violation.description);
        let text = wrapped(&text, "         ", COLUMNS);
        push_labelled(&mut out, style, "field", text.trim_start());
    }
    push_advice(&mut out, style, advice);
    if !failure.trace_id.is_empty() {
        push_labelled(&mut out, style, "trace", &line(&failure.trace_id));
    }
    push_labelled(&mut out, style, "more", &format!("faultline explain {}", failure.row().name));
    out
}

pub(super) fn append(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
}

pub(super) fn push_labelled(out: &mut String, style: Style, label: &str, text: &str) {
    let label = style.dim(format!("{label:<5}"));
    append(out, format_args!("  {label}  {text}\n"));
}

/// The advice, wrapped to the width of the card.
pub(super) fn push_advice(out: &mut String, style: Style, advice: &str) {
    push_labelled(out, style, "do", wrapped(advice, "         ", COLUMNS).trim_start());
}

/// The gRPC code, whether a retry makes sense, the delay, and the retries spent.
pub(super) fn facts(failure: &Failure) -> String {
    let code = reason::code_name(failure.code());
    let mut facts = Vec::new();
    if failure.reason != code {
        facts.push(format!("gRPC {code}"));
    }
    let advice = advise(failure, Reader::Caller);
    let retry = match advice.verdict {
        Verdict::Retry => "retryable",
        Verdict::Check => "outcome unknown",
        _ => "not retryable",
    };
    facts.push(retry.to_owned());
    if let Some(delay) = advice.retry_after {
        facts.push(format!("wait {}", span(delay)));
    }
    if failure.retries_spent > 0 {
        let word = if failure.retries_spent == 1 { "retry" } else { "retries" };
        facts.push(format!("{} {word} spent", failure.retries_spent));
    }
    if failure.foreign {
        facts.push("as a peer outside the mesh says".to_owned());
    }
    facts.join(", ")
}

/// One line per hop, each below its caller.
fn push_hops(failure: &Failure, style: Style, out: &mut String) {
    let last = failure.causes.len().saturating_sub(1);
    for (depth, cause) in failure.causes.iter().enumerate() {
        let indent = "   ".repeat(depth);
        if depth == last && failure.causes_dropped > 0 {
            let gap = format!("⋮  {} hops were not kept", failure.causes_dropped);
            append(out, format_args!("  {indent}{}\n", style.dim(gap)));
        }
        let hop = if depth == last {
            origin_hop(failure, cause, style)
        } else {
            intermediate_hop(failure, cause, style)
        };
        append(out, format_args!("  {indent}{} {hop}\n", style.dim("└─")));
    }
    push_branches(failure, &"   ".repeat(last + 1), style, out);
}

/// One line per failed branch of a fan-out.
fn push_branches(failure: &Failure, indent: &str, style: Style, out: &mut String) {
    let branches = failure.aggregate.as_ref().map_or(&[][..], |all| &all.branches);
    for (at, one) in branches.iter().enumerate() {
        let connector = if at + 1 == branches.len() { "└─" } else { "├─" };
        append(
            out,
            format_args!("  {indent}{} {}\n", style.dim(connector), branch_line(one, style)),
        );
    }
}

/// The path, the root reason and the message of a branch.
pub(super) fn branch_line(branch: &Branch, style: Style) -> String {
    let way: Vec<_> = match branch.path.as_slice() {
        [] => vec![line(&branch.agent)],
        path => path.iter().map(|agent| line(agent)).collect(),
    };
    let or = |root: &str, own: &str| if root.is_empty() { line(own) } else { line(root) };
    let reason = or(&branch.root_reason, &branch.reason);
    let text = short(&or(&branch.root_message, &branch.public_message), QUOTE_CHARS_MAX);
    let mut out = format!("{}   {}  \"{text}\"", style.cyan(way.join(" → ")), style.bold(reason));
    if !branch.business_code.is_empty() {
        append(&mut out, format_args!("  code {}", style.yellow(line(&branch.business_code))));
    }
    out
}

/// The hop in which the failure originated, with all known details.
fn origin_hop(failure: &Failure, cause: &Cause, style: Style) -> String {
    let origin = failure.origin.clone().unwrap_or_default();
    let name = [&cause.agent, &origin.agent, &origin.service];
    let name = name.into_iter().find(|n| !n.is_empty()).map_or("unknown", String::as_str);
    let reason = if cause.reason.is_empty() { &failure.reason } else { &cause.reason };
    let quote = short(&cause.public_message, QUOTE_CHARS_MAX);
    let mut out = format!("{}   {}  \"{quote}\"", style.cyan(line(name)), style.bold(line(reason)));
    if !cause.business_code.is_empty() {
        append(&mut out, format_args!("  code {}", style.yellow(line(&cause.business_code))));
    }
    // The worker is known only if the caller may see it (scope `operate`).
    if !origin.worker.is_empty() {
        let attempt = failure.retries_spent.saturating_add(1);
        let place = format!("worker {}, attempt {attempt}", line(&origin.worker));
        append(&mut out, format_args!("   {}", style.dim(place)));
    }
    out
}

/// A hop that passed the failure on: its agent and its task.
fn intermediate_hop(failure: &Failure, cause: &Cause, style: Style) -> String {
    let name = if cause.agent.is_empty() { "unknown" } else { &cause.agent };
    let mut out = style.cyan(line(name));
    // Only a peer outside the mesh has a message of its own for a failure that it passes on.
    if !cause.public_message.is_empty() {
        let quote = short(&cause.public_message, QUOTE_CHARS_MAX);
        append(&mut out, format_args!("   \"{quote}\""));
    }
    if !cause.task_id.is_empty() && cause.task_id != failure.task_id {
        append(
            &mut out,
            format_args!("   {}", style.dim(format!("task {}", line(&cause.task_id)))),
        );
    }
    out
}

/// The advice for this reader as one sentence, with the party that acts.
pub(crate) fn advice(failure: &Failure, reader: Reader) -> String {
    advise(failure, reader).sentence()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use faultline_proto::v1::Origin;

    use super::*;

    fn limited() -> Failure {
        let origin =
            Origin { agent: "script".into(), worker: "w-1".into(), service: String::new() };
        Failure::new(&reason::RATE_LIMITED)
            .because("slow down")
            .with_business_code("CARD_17")
            .with_retry_after(Duration::from_secs(2))
            .with_trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
            .with_task("t-3", "c-1")
            .born_at(origin)
    }

    #[test]
    fn failure_with_one_hop_renders_as_a_card() {
        let text = render(&limited(), "task t-3 failed", Reader::Caller, Style::plain());
        assert_eq!(
            text,
            "\
✗ task t-3 failed: RATE_LIMITED (gRPC RESOURCE_EXHAUSTED, retryable, wait 2s)
  slow down
  └─ script   RATE_LIMITED  \"slow down\"  code CARD_17   worker w-1, attempt 1
  do     wait 2s, then send again (the caller)
  trace  4bf92f3577b34da6a3ce929d0e0e4736
  more   faultline explain RATE_LIMITED
"
        );
    }

    #[test]
    fn chain_of_hops_ends_with_the_origin() {
        let failure = limited().with_retries_spent(2).wrap("plan", "t-2", "c-1");
        let failure = failure.wrap("front", "t-1", "c-1");
        let text = render(&failure, "task t-1 failed", Reader::Caller, Style::plain());
        assert_eq!(
            text,
            "\
✗ task t-1 failed: RATE_LIMITED (gRPC RESOURCE_EXHAUSTED, retryable, wait 2s, 2 retries spent)
  script: slow down (via plan)
  └─ front
     └─ plan   task t-2
        └─ script   RATE_LIMITED  \"slow down\"  code CARD_17   worker w-1, attempt 3
  do     wait 2s, then send again (the caller)
  trace  4bf92f3577b34da6a3ce929d0e0e4736
  more   faultline explain RATE_LIMITED
"
        );
    }

    #[test]
    fn each_branch_of_a_fan_out_names_its_origin() {
        let origin = |agent: &str| Origin { agent: agent.into(), ..Origin::default() };
        let deep = limited().wrap("plan", "t-2", "c-1").to_branch("plan");
        let refused = Failure::new(&reason::AGENT_NOT_FOUND).because("there is no 'nobody'");
        let refused = refused.born_at(origin("nobody")).to_branch("nobody");
        let few = Failure::too_few(2, 3, 1, &[deep, refused]).born_at(origin("front"));
        let text = render(
            &few.wrap("top", "t-0", "c-1"),
            "task t-0 failed",
            Reader::Caller,
            Style::plain(),
        );
        let tree = "\
  └─ top
     └─ front   MIN_RESULTS_NOT_MET  \"Only 1/3 agents responded. Minimum required: 2\"
        ├─ plan → script   RATE_LIMITED  \"slow down\"  code CARD_17
        └─ nobody   AGENT_NOT_FOUND  \"there is no 'nobody'\"
";
        assert!(text.contains(tree), "{text}");
    }

    #[test]
    fn rejected_call_names_its_fields() {
        let failure = Failure::new(&reason::INVALID_PARAMS)
            .because("Invalid parameters")
            .with_violation("message.parts", "must not be empty")
            .born_at(Origin { service: "gateway".into(), ..Origin::default() });
        let text = render(&failure, "send to echo failed", Reader::Caller, Style::plain());
        assert_eq!(
            text,
            "\
✗ send to echo failed: INVALID_PARAMS (gRPC INVALID_ARGUMENT, not retryable)
  Invalid parameters
  └─ gateway   INVALID_PARAMS  \"Invalid parameters\"
  field  message.parts: must not be empty
  do     correct the named fields, then send again (the caller)
  more   faultline explain INVALID_PARAMS
"
        );
    }

    #[test]
    fn long_chain_counts_dropped_hops_and_foreign_text_is_sanitized() {
        let mut failure = limited();
        for i in 0..20 {
            failure = failure.wrap(&format!("a{i}"), "t", "c");
        }
        let text = render(&failure, "task t failed", Reader::Caller, Style::plain());
        assert!(text.contains("⋮  5 hops were not kept\n"), "{text}");
        let mut record = Failure::new(&reason::UNAVAILABLE).into_record();
        record.reason = "BRAND_NEW\x1b[2J".into();
        record.public_message = "two\nlines \x1b[31m".into();
        record.foreign = true;
        let text =
            render(&Failure::from_record(record), "call failed", Reader::Caller, Style::plain());
        assert!(text.contains("as a peer outside the mesh says"), "{text}");
        assert!(text.contains("faultline explain UNAVAILABLE"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }

    #[test]
    fn styled_text_equals_plain_text_without_escape_codes() {
        let painted = render(&limited(), "task t-3 failed", Reader::Caller, Style::always());
        assert!(painted.contains("\x1b["));
        let mut plain = String::new();
        let mut rest = painted.as_str();
        while let Some(start) = rest.find('\x1b') {
            plain.push_str(&rest[..start]);
            rest = &rest[start..];
            rest = &rest[rest.find('m').unwrap() + 1..];
        }
        plain.push_str(rest);
        assert_eq!(plain, render(&limited(), "task t-3 failed", Reader::Caller, Style::plain()));
    }
}
