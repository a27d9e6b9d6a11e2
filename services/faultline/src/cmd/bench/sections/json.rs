//! The cost of ProtoJSON for a typical task: encoding and decoding, beside protobuf and plain JSON.

use std::{
    fmt::Write,
    hint::black_box,
    time::{Duration, Instant},
};

use faultline_proto::{
    a2a::Task,
    json::{from_slice, sample::sample_task, to_vec},
};
use prost::Message;
use serde_json::{Value, json};

use crate::cmd::bench::{
    Report,
    figures::{round, table::table},
    progress,
};

const OUT_MAX: Duration = Duration::from_micros(6);
const IN_MAX: Duration = Duration::from_micros(12);
const ROUNDS: usize = 25;
const ROUND: Duration = Duration::from_millis(20);

pub(crate) fn run() -> Report {
    progress("ProtoJSON");
    let task = sample_task();
    let text = to_vec(&task);
    let bytes = task.encode_to_vec();
    let out = time(|| to_vec(black_box(&task)));
    let read = time(|| from_slice::<Task>(black_box(&text)).ok());
    let encode = time(|| black_box(&task).encode_to_vec());
    let decode = time(|| Task::decode(black_box(&bytes[..])).ok());
    let value = time(|| serde_json::from_slice::<Value>(black_box(&text)).ok());
    let out_ok = out <= OUT_MAX;
    let in_ok = read <= IN_MAX;
    let rows = [
        ("ProtoJSON out", out, check(OUT_MAX, out_ok)),
        ("ProtoJSON in", read, check(IN_MAX, in_ok)),
        ("protobuf out", encode, String::new()),
        ("protobuf in", decode, String::new()),
        ("serde_json::Value in", value, String::new()),
    ];
    let mut table_rows = vec![["", "ns/op", ""].map(str::to_owned).to_vec()];
    table_rows.extend(
        rows.iter().map(|(n, t, c)| vec![(*n).to_owned(), t.as_nanos().to_string(), c.clone()]),
    );
    let mut shown = String::new();
    let sizes = (text.len(), bytes.len());
    let _ = writeln!(shown, "A task of {} bytes of JSON, {} of protobuf\n", sizes.0, sizes.1);
    shown.push_str(&table(&table_rows));
    let ns = |time: Duration| round(time.as_secs_f64() * 1e9, 1);
    let json = json!({
        "json_bytes": sizes.0,
        "protobuf_bytes": sizes.1,
        "ns": {
            "json_out": ns(out),
            "json_in": ns(read),
            "protobuf_out": ns(encode),
            "protobuf_in": ns(decode),
            "value_in": ns(value),
        },
        "json_out_ok": out_ok,
        "json_in_ok": in_ok,
    });
    Report { text: shown, json, failed: 0 }
}

fn check(bound: Duration, ok: bool) -> String {
    format!("{} {} µs", if ok { "≤" } else { ">" }, bound.as_micros())
}

/// The time of one `work`: the tenth percentile of many rounds, because noise only adds time.
fn time<T>(mut work: impl FnMut() -> T) -> Duration {
    let mut count: u32 = 1;
    // Doubled until a round is long enough for the clock, which also warms up the caches.
    while round_of(count, &mut work) < ROUND {
        count = count.saturating_mul(2);
    }
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| round_of(count, &mut work)).collect();
    rounds.sort_unstable();
    rounds[ROUNDS / 10] / count
}

fn round_of<T>(count: u32, work: &mut impl FnMut() -> T) -> Duration {
    let start = Instant::now();
    for _ in 0..count {
        black_box(work());
    }
    start.elapsed()
}
