//! A typical finished task of 3.4 KB, for benchmarks and tests. Nothing else uses it.

use prost_types::{Struct, Timestamp, Value, value::Kind};

use crate::a2a::{Artifact, Message, Part, Role, Task, TaskState, TaskStatus, part::Content};

/// Nine messages of history, two artifacts and some metadata.
pub fn sample_task() -> Task {
    Task {
        id: TASK_ID.into(),
        context_id: CONTEXT_ID.into(),
        status: Some(TaskStatus {
            state: TaskState::Completed.into(),
            message: Some(message(9, Role::Agent, "Done: the report is attached.")),
            timestamp: Some(Timestamp { seconds: 1_767_225_600, nanos: 120_000_000 }),
        }),
        artifacts: vec![artifact(0), artifact(1)],
        history: HISTORY
            .iter()
            .enumerate()
            .map(|(index, text)| {
                message(index, if index % 2 == 0 { Role::User } else { Role::Agent }, text)
            })
            .collect(),
        metadata: Some(object([
            ("agent", Kind::StringValue("researcher".into())),
            ("attempt", Kind::NumberValue(1.0)),
            ("cost", Kind::NumberValue(0.0421)),
            ("cached", Kind::BoolValue(false)),
        ])),
    }
}

const TASK_ID: &str = "0198f6a2-7c1e-7a43-9f0b-5f2d6f3f8a11";
const CONTEXT_ID: &str = "0198f6a2-7c1e-7a43-9f0b-1c9be2a7d0c4";

const HISTORY: [&str; 9] = [
    "Compare the \"cold start\" times of the three runtimes in the attached table.",
    "I will read the table first.\nThen I will group the rows by runtime.",
    "Use the median, not the mean.",
    "Understood: median per runtime with its 95 % interval by bootstrap, and no outliers removed \
     unless the log says that the host itself was restarted.",
    "Also mention how many samples were dropped, and why.",
    "Twelve of 1200 rows have no end time; they are left out.",
    "Fine. Schreib die Zusammenfassung bitte auf Deutsch – höchstens fünf Sätze.",
    "Gern. Ich fasse die Ergebnisse in fünf Sätzen zusammen.",
    "And attach the numbers as JSON, please.",
];

fn message(index: usize, role: Role, text: &str) -> Message {
    Message {
        message_id: format!("0198f6a2-7c1e-7a43-9f0b-00000000000{index}"),
        context_id: CONTEXT_ID.into(),
        task_id: TASK_ID.into(),
        role: role.into(),
        parts: vec![Part {
            content: Some(Content::Text(text.into())),
            media_type: "text/plain".into(),
            ..Part::default()
        }],
        ..Message::default()
    }
}

fn artifact(index: usize) -> Artifact {
    let runtimes = ["wasm", "container", "microvm"];
    let medians = runtimes.map(|name| (name, Kind::NumberValue(17.25 + index as f64)));
    Artifact {
        artifact_id: format!("report-{index}"),
        name: "Cold start".into(),
        parts: vec![Part {
            content: Some(Content::Data(Value::from(Kind::StructValue(object(medians))))),
            media_type: "application/json".into(),
            ..Part::default()
        }],
        ..Artifact::default()
    }
}

fn object<const N: usize>(fields: [(&str, Kind); N]) -> Struct {
    let fields = fields.into_iter().map(|(key, kind)| (key.to_owned(), kind.into())).collect();
    Struct { fields }
}
