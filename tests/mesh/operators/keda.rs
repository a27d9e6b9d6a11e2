//! The KEDA external scaler: demand for workers over gRPC, without the token of the mesh.

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

fn scaled_object() -> ScaledObjectRef {
    let scaler_metadata =
        [("agents", "script"), ("slots", "2"), ("scalerAddress", "coordinator:8081")];
    let scaler_metadata = scaler_metadata.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    ScaledObjectRef { name: "workers".into(), namespace: "agents".into(), scaler_metadata }
}

/// The number of workers that KEDA computes: metric value divided by target size, rounded up.
async fn desired_workers(scaler: &mut Scaler) -> i64 {
    let spec = scaler.get_metric_spec(scaled_object()).await.expect("the scaler answers");
    let MetricSpec { metric_name, target_size, .. } = spec.into_inner().metric_specs.remove(0);
    let request = GetMetricsRequest { scaled_object_ref: Some(scaled_object()), metric_name };
    let values = scaler.get_metrics(request).await.expect("the scaler answers").into_inner();
    let demand = values.metric_values[0].metric_value;
    (demand + target_size - 1) / target_size
}

pub(crate) async fn until_desired(scaler: &Scaler, workers: i64) {
    until(&format!("KEDA computes {workers} workers"), SOON, || {
        let mut scaler = scaler.clone();
        async move { (desired_workers(&mut scaler).await == workers).then_some(()) }
    })
    .await;
}

async fn is_active(scaler: &mut Scaler) -> bool {
    scaler.is_active(scaled_object()).await.expect("the scaler answers").into_inner().result
}

async fn next_activity(stream: &mut Streaming<IsActiveResponse>) -> bool {
    let next = timeout(SOON, stream.message()).await;
    next.expect("in time").expect("a message").expect("the stream continues").result
}

#[tokio::test(flavor = "multi_thread")]
async fn demand_scales_from_zero_and_back_to_zero() {
    let up = start_with(|config| {
        config.mesh.token = Some(Secret::new("hunter2").unwrap());
        config.worker.slots = SLOTS;
    });
    let mut up = up.await;
    let dial = Dial { address: format!("http://{}", up.mesh.hub_addr()), ..Dial::default() };
    let anonymous = Channel::lazy(&dial).unwrap();
    let refused = MeshClient::new(anonymous.clone()).workers(WorkersRequest {}).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "other services require the token");
    let mut scaler = Scaler::new(anonymous);

    let mut active = scaler.stream_is_active(scaled_object()).await.unwrap().into_inner();
    assert!(!next_activity(&mut active).await);
    assert_eq!(desired_workers(&mut scaler).await, 0);
    up.mesh.detach().await.unwrap();

    // Five messages wait without a worker.
    let script = &up.script;
    let tasks = futures::future::join_all((0..5).map(async |_| script.send("chunk done").await));
    let scaled = async {
        assert!(next_activity(&mut active).await, "the stream reports activity");
        until_desired(&scaler, 3).await;
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
    assert!(!next_activity(&mut active).await && !is_active(&mut scaler).await);
    assert_eq!(desired_workers(&mut scaler).await, 0);

    // A task with an open question needs no worker until its answer.
    let asks = up.script.send("ask \"who?\"; artifact who $answer").await;
    let id = asks["id"].as_str().unwrap();
    assert_eq!(desired_workers(&mut scaler).await, 0, "{asks}");
    for _ in 0..3 {
        up.mesh.detach().await.unwrap();
    }
    assert_eq!(desired_workers(&mut scaler).await, 0, "also without its worker");
    let rpc = up.script.clone();
    let (answered, ()) = tokio::join!(rpc.call("SendMessage", answer(id, "ada")), async {
        assert!(next_activity(&mut active).await);
        until_desired(&scaler, 1).await;
        let agents = vec!["script".to_owned()];
        let config = faultline_worker::Config { agents, slots: SLOTS, ..Default::default() };
        up.mesh.attach(config, Worker::new).await.unwrap();
    });
    let answered = &answered.unwrap()["task"];
    assert_eq!(state(answered), COMPLETED, "{answered}");
    assert!(!next_activity(&mut active).await);
}
