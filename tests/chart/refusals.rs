//! Invalid values: helm refuses them before the installation, with a remedy.

use crate::refused;

#[test]
fn pool_with_more_agents_than_keda_may_name_is_refused() {
    let agents: Vec<_> = (0..65).map(|n| format!("\"a{n}\"")).collect();
    let agents = agents.join(",");
    let scaled = r#""autoscaling":{"by":"keda"}"#;
    let values = format!(r#"workers=[{{"name":"a","agents":[{agents}],{scaled}}}]"#);
    let says = refused(&["--set-json", &values]);
    assert!(says.contains("pool a: KEDA asks for 64 agents at most"), "{says}");
}

#[test]
fn invalid_values_are_refused_with_a_remedy() {
    for (values, says) in [
        ("coordinator.replicas=2", "SQLite has one coordinator; set store.kind to postgres"),
        ("coordinator.leaseMs=9000", "coordinator.leaseMs: it is for several coordinators"),
        ("coordinator.storeConnections=4", "set store.kind to postgres, or leave it out"),
        ("coordinator.keepEndedHours=0", "'/coordinator/keepEndedHours'"),
        ("gateway.cardKeySecret.name=card", "gateway.publicUrl: cards that are signed name"),
        ("gateway.cardKeySecret.name=card,gateway.publicUrl=https://m.example", "cardKeyId: name"),
        ("config=card_key = \"/key.pem\"", "gateway.publicUrl: cards that are signed name"),
        ("gateway.publicUrl=mesh.example", "'/gateway/publicUrl'"),
        ("gateway.drainDelayMs=-1", "'/gateway/drainDelayMs'"),
        ("networkPolicy.postgresPort=0", "'/networkPolicy/postgresPort'"),
        ("store.postgres.url=postgres://u:p@h/d", "'url' not allowed"),
        ("store.kind=mysql", "'/store/kind'"),
        ("image.tag=latest", "name a tag that stays what it is, or a digest"),
        ("gatway.replicas=2", "'gatway' not allowed"),
        ("mesh.gatewaySecret=", "'/mesh/gatewaySecret'"),
        ("mesh.tokenSecret.name=x", "'tokenSecret' not allowed"),
        ("mesh.operatorSecret=faultline-mesh-gateway", "each role and each pool of workers has"),
        (
            r#"workers=[{"name":"a","agents":["x"],"meshSecret":"s"},
                        {"name":"b","agents":["y"],"meshSecret":"s"}]"#,
            "the credentials of worker-a and worker-b are both in the secret s",
        ),
        ("store.sqlite.size=10", "'/store/sqlite/size'"),
        (r#"workers=[{"name":"a","agents":[]}]"#, "'/workers/0/agents'"),
        (r#"workers=[{"name":"a","agents":["Echo"]}]"#, "'/workers/0/agents/0'"),
        (r#"workers=[{"name":"a","agents":["*"]}]"#, "'/workers/0/agents/0'"),
        (
            r#"workers=[{"name":"a","agents":["x"],"autoscaling":{"keda":true,"hpa":true}}]"#,
            "'/workers/0/autoscaling'",
        ),
        (
            r#"workers=[{"name":"a","agents":["x"],"autoscaling":{"by":"keda,hpa"}}]"#,
            "must be one of 'none', 'keda', 'hpa'",
        ),
        (
            r#"workers=[{"name":"a","agents":["x"],"autoscaling":{"by":"hpa"}}]"#,
            "pool a: an HPA does not scale to none; set autoscaling.min to 1 or more",
        ),
        (
            r#"workers=[{"name":"a","agents":["x"],"autoscaling":{"by":"keda","min":11}}]"#,
            "pool a: autoscaling.min is above autoscaling.max",
        ),
        (
            r#"workers=[{"name":"a","agents":["x"],"autoscaling":{"by":"keda"}},
                        {"name":"b","agents":["y","x"],"autoscaling":{"by":"hpa","min":1}}]"#,
            "agent x is scaled in the pools a and b",
        ),
        (
            r#"workers=[{"name":"a","agents":["x"]},{"name":"a","agents":["y"]}]"#,
            "two pools are called a",
        ),
        (
            r#"workers=[{"name":"a","agents":["x"],"image":{"repository":"mine"}}]"#,
            "image mine: name a tag that stays what it is",
        ),
    ] {
        let flag = if values.contains('[') { "--set-json" } else { "--set" };
        let error = refused(&[flag, values]);
        assert!(error.contains(says), "{values}: {error}");
    }
}
