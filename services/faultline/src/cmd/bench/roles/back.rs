//! The last hop of the bare chain: attached to the middle by one stream, it answers each assignment
//! with the text of its message, in as many reports as the `echo` agent of a worker.

use anyhow::Context;
use faultline_chassis::{client::Channel, limits, process::print_ready_line};
use faultline_proto::{
    a2a::{Artifact, Message},
    v1::{
        ArtifactChunk, Assign, Completed, FromWorker, Hello, Report, Reports, from_worker,
        hub_client::HubClient, report, to_worker,
    },
};
use futures::stream;
use tokio::sync::mpsc;

pub(crate) async fn serve(to: &str) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::channel(limits::OUTBOX_MAX);
    sender.send(from_worker::Body::Hello(Hello::default())).await.context("just made")?;
    let said = stream::poll_fn(move |cx| {
        receiver.poll_recv(cx).map(|body| Some(FromWorker { body: Some(body?) }))
    });
    let attached = HubClient::new(Channel::without_token(to)?).attach(said).await;
    let mut heard = attached.context("cannot attach")?.into_inner();
    print_ready_line("ready")?;
    while let Some(message) = heard.message().await? {
        if let Some(to_worker::Body::Assign(assign)) = message.body {
            let reports = from_worker::Body::Reports(Reports { reports: echo(assign) });
            sender.send(reports).await.context("the middle is gone")?;
        }
    }
    Ok(())
}

fn echo(assign: Assign) -> Vec<Report> {
    let Assign { task_id, attempt, message, .. } = assign;
    let artifact = Some(artifact(message.unwrap_or_default()));
    let chunk = ArtifactChunk { artifact, append: false, last_chunk: true };
    let bodies = [report::Body::Artifact(chunk), report::Body::Completed(Completed::default())];
    let report =
        |(number, body)| Report { task_id: task_id.clone(), attempt, number, body: Some(body) };
    (1..).zip(bodies).map(report).collect()
}

/// The artifact of the `echo` agent for a message.
pub(crate) fn artifact(message: Message) -> Artifact {
    Artifact {
        artifact_id: "echo".to_owned(),
        name: "echo".to_owned(),
        parts: message.parts,
        ..Artifact::default()
    }
}
