//! KEDA's questions to a mesh that has a token, asked as KEDA does: over gRPC, without it.

use faultline_chassis::{
    Secret,
    client::{Channel, Dial},
};
use faultline_proto::{
    keda::{
        GetMetricsRequest, IsActiveResponse, MetricSpec, ScaledObjectRef,
        external_scaler_client::ExternalScalerClient,
    },
    v1::{WorkersRequest, mesh_client::MeshClient},
};
use faultline_tests::{
    rpc::answer,
    task::{COMPLETED, state},
    until,
    wait::SOON,
};
use faultline_worker::Worker;
use tokio::time::timeout;
use tonic::{Code, Streaming};

use crate::start_with;

const SLOTS: u32 = 2;

pub(crate) type Scaler = ExternalScalerClient<Channel>;

fn asked() -> ScaledObjectRef {
    let scaler_metadata =
        [("agents", "script"), ("slots", "2"), ("scalerAddress", "coordinator:8081")];
    let scaler_metadata = scaler_metadata.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    ScaledObjectRef { name: "workers".into(), namespace: "agents".into(), scaler_metadata }
}

/// How many workers KEDA would have: the value of the metric by its target.
async fn workers_wanted(scaler: &mut Scaler) -> i64 {
    let spec = scaler.get_metric_spec(asked()).await.expect("it is answered");
    let MetricSpec { metric_name, target_size, .. } = spec.into_inner().metric_specs.remove(0);
    let request = GetMetricsRequest { scaled_object_ref: Some(asked()), metric_name };
    let values = scaler.get_metrics(request).await.expect("it is answered").into_inner();
    let demand = values.metric_values[0].metric_value;
    (demand + target_size - 1) / target_size
}

pub(crate) async fn until_wanted(scaler: &Scaler, workers: i64) {
    until("KEDA would have the workers that are needed", SOON, || {
        let mut scaler = scaler.clone();
        async move { (workers_wanted(&mut scaler).await == workers).then_some(()) }
    })
    .await;
}

async fn is_active(scaler: &mut Scaler) -> bool {
    scaler.is_active(asked()).await.expect("it is answered").into_inner().result
}

async fn told(stream: &mut Streaming<IsActiveResponse>) -> bool {
    let next = timeout(SOON, stream.message()).await;
    next.expect("in time").expect("it is told").expect("it goes on").result
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_asked_for_from_none_to_some_and_back_to_none() {
    let up = start_with(|config| {
        config.mesh.token = Some(Secret::new("hunter2").unwrap());
        config.worker.slots = SLOTS;
    });
    let mut up = up.await;
    let dial = Dial { address: format!("http://{}", up.mesh.hub_addr()), ..Dial::default() };
    let stranger = Channel::lazy(&dial).unwrap();
    let refused = MeshClient::new(stranger.clone()).workers(WorkersRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "everything else asks for the token");
    let mut scaler = Scaler::new(stranger);

    let mut active = scaler.stream_is_active(asked()).await.unwrap().into_inner();
    assert!(!told(&mut active).await);
    assert_eq!(workers_wanted(&mut scaler).await, 0);
    up.mesh.detach().await.unwrap();

    // Five messages wait, for which nobody is there.
    let script = &up.script;
    let tasks = futures::future::join_all((0..5).map(async |_| script.send("chunk done").await));
    let scaled = async {
        assert!(told(&mut active).await, "it is told without having asked");
        until_wanted(&scaler, 3).await;
        assert!(is_active(&mut scaler).await);
        for _ in 0..3 {
            let agents = vec!["script".to_owned()];
            let config = faultline_worker::Config { agents, slots: SLOTS, ..Default::default() };
            up.mesh.attach(config, Worker::new).await.unwrap();
        }
    };
    let (tasks, ()) = tokio::join!(tasks, scaled);
    for task in &tasks {
        assert_eq!(state(task), COMPLETED, "{task}");
    }
    assert!(!told(&mut active).await && !is_active(&mut scaler).await);
    assert_eq!(workers_wanted(&mut scaler).await, 0);

    // What waits for somebody needs no worker, until it is answered.
    let asks = up.script.send("ask \"who?\"; artifact who $answer").await;
    let id = asks["id"].as_str().unwrap();
    assert_eq!(workers_wanted(&mut scaler).await, 0, "{asks}");
    for _ in 0..3 {
        up.mesh.detach().await.unwrap();
    }
    assert_eq!(workers_wanted(&mut scaler).await, 0, "nor does it when its worker is gone");
    let rpc = up.script.clone();
    let (answered, ()) = tokio::join!(rpc.call("SendMessage", answer(id, "ada")), async {
        assert!(told(&mut active).await);
        until_wanted(&scaler, 1).await;
        let agents = vec!["script".to_owned()];
        let config = faultline_worker::Config { agents, slots: SLOTS, ..Default::default() };
        up.mesh.attach(config, Worker::new).await.unwrap();
    });
    let answered = &answered.unwrap()["task"];
    assert_eq!(state(answered), COMPLETED, "{answered}");
    assert!(!told(&mut active).await);
}
