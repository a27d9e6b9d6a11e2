//! Agreement of the chart with the binary: configuration keys, variables, ports, secrets and names,
//! and references between objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, Ipv4Addr},
    process::Command,
    sync::OnceLock,
};

use faultline::{Config, LocalMesh};
use faultline_chassis::{
    Network,
    config::Environment,
    credential::{Credentials, Role},
};
use faultline_client::{self as client, Builder, Client};
use faultline_proto::v1::{TasksRequest, TasksResponse};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    NAME, NAMESPACE, RELEASE, SIZES, chart, helm, kind, list, name, of_kind, rendered, root,
    selects, text, workloads,
};

const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

const DATABASE: &str = "postgres://mesh:secret@db.example:5432/mesh?sslmode=verify-full";

/// The path of the database CA in README.md and values.yaml.
const STORE_CA: &str = "/etc/faultline/postgres/ca.crt";

/// The content of a secret that the chart refers to, by name and key.
fn secret(name: &str, key: &str) -> String {
    match (name, key) {
        (name, "token" | "sha256") if name.starts_with("faultline-mesh-") => {
            let token = format!("token of {name}").replace(' ', "-");
            match (callers().mesh.get(name), key) {
                (Some((token, _)), "token") => token.clone(),
                (Some((_, digest)), _) => digest.clone(),
                (None, "token") => token,
                (None, _) => digest(&token),
            }
        }
        ("faultline-auth", "tokens") => callers().list.clone(),
        ("faultline-store", "url") => format!("{DATABASE}&sslrootcert={STORE_CA}"),
        ("faultline-store-public", "url") => DATABASE.to_owned(),
        other => panic!("README.md does not create the secret {other:?}"),
    }
}

fn digest(token: &str) -> String {
    let script = "printf %s \"$0\" | sha256sum | cut -d' ' -f1 | tr -d '\\n'";
    let output = Command::new("bash").args(["-c", script, token]).output().expect("bash runs");
    String::from_utf8(output.stdout).expect("it is text")
}

/// The secrets that the commands of README.md create: tokens of a caller and an operator with the
/// list of their digests, and the credentials of the mesh as token and digest, by the name of the
/// secret.
struct Callers {
    caller: String,
    operator: String,
    mesh: BTreeMap<String, (String, String)>,
    list: String,
}

/// Runs those commands, with stand-ins for openssl and kubectl.
fn callers() -> &'static Callers {
    static CALLERS: OnceLock<Callers> = OnceLock::new();
    CALLERS.get_or_init(|| {
        let readme = fs::read_to_string(chart().join("README.md")).expect("there is a README");
        // The first line of a block names its language.
        let mut blocks = readme.split("\n```").filter_map(|block| Some(block.split_once('\n')?.1));
        let lines = blocks.find(|block| block.contains("faultline-auth")).expect("it creates them");
        let script = format!(
            r#"set -eu
            openssl() {{ od -An -N16 -tx8 /dev/urandom | tr -d ' '; }}
            mesh=
            kubectl() {{
              case "${{6-}}" in
                faultline-auth) list=${{7#--from-literal=tokens=}} ;;
                faultline-mesh-*)
                  mesh+="$6 ${{7#--from-literal=token=}} ${{8#--from-literal=sha256=}};" ;;
              esac
            }}
            {lines}
            printf '%s\n' "$TOKEN" "$OPERATOR" "$mesh" "$list""#
        );
        let output = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).expect("it is text");
        let mut parts = printed.splitn(4, '\n').map(str::to_owned);
        let [caller, operator, mesh, list] =
            [(); 4].map(|()| parts.next().expect("all are printed"));
        let mesh = mesh.split_terminator(';').map(|made| {
            let mut words = made.split(' ').map(str::to_owned);
            let [name, token, digest] = [(); 3].map(|()| words.next().expect("all are created"));
            (name, (token, digest))
        });
        Callers { caller, operator, mesh: mesh.collect(), list }
    })
}

pub(crate) fn environment(container: &Value) -> Environment {
    let pair = |variable: &Value| {
        let reference = &variable["valueFrom"]["secretKeyRef"];
        let value = match variable["value"].as_str() {
            Some(value) => value.to_owned(),
            None => secret(text(reference, "/name"), text(reference, "/key")),
        };
        (text(variable, "/name").to_owned(), value)
    };
    // As in Kubernetes, $(NAME) is the value of an earlier variable.
    let mut known = Environment::new();
    for (name, mut value) in list(container, "/env").iter().map(pair) {
        for (before, filled) in &known {
            value = value.replace(&format!("$({before})"), filled);
        }
        known.insert(name, value);
    }
    known
}

/// A rendered release, and a directory from which the binary loads the configuration of a
/// container.
pub(crate) struct LoadedRelease {
    pub(crate) objects: Vec<Value>,
    pub(crate) dir: TempDir,
}

impl LoadedRelease {
    pub(crate) fn of(size: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("there is room for a temporary directory");
        Self { objects: rendered(size), dir }
    }

    pub(crate) fn file(&self) -> &str {
        let maps = of_kind(&self.objects, "ConfigMap");
        maps[0]["data"]["faultline.toml"].as_str().expect("it has a file")
    }

    fn load(&self, env: &Environment) -> Config {
        let path = self.dir.path().join("faultline.toml");
        fs::write(&path, self.file()).expect("a file can be written");
        let loaded = Config::default().load(Some(&path), env);
        loaded.unwrap_or_else(|e| panic!("the binary refuses the configuration: {e}"))
    }

    /// Containers by the names of their workloads.
    fn containers(&self) -> BTreeMap<&str, &Value> {
        let workloads = workloads(&self.objects);
        let first = |w: &&'_ Value| list(w, "/spec/template/spec/containers").len() == 1;
        assert!(workloads.iter().all(first), "each pod has one container");
        let container = |w| (name(w), &list(w, "/spec/template/spec/containers")[0]);
        workloads.into_iter().map(container).collect()
    }
}

pub(crate) fn port(container: &Value, name: &str) -> Option<u16> {
    let port = list(container, "/ports").iter().find(|port| port["name"] == name)?;
    port["containerPort"].as_u64()?.try_into().ok()
}

/// The command of the binary; a user-written worker has none.
fn role(container: &Value) -> &str {
    match text(container, "/args/0") {
        "" => "worker",
        role => role,
    }
}

#[test]
fn binary_reads_the_configuration_of_the_chart() {
    for size in SIZES {
        let release = LoadedRelease::of(size);
        for (name, container) in release.containers() {
            let env = environment(container);
            assert_eq!(env["FAULTLINE_CONFIG"], "/etc/faultline/faultline.toml", "{name}");
            assert!(
                list(container, "/volumeMounts")
                    .iter()
                    .any(|mount| { mount["mountPath"] == "/etc/faultline/faultline.toml" })
            );
            let config = release.load(&env);
            let (listens, admin) = match role(container) {
                "gateway" => (Some(config.gateway.listen), config.gateway.admin),
                "coordinator" => (Some(config.coordinator.listen), config.coordinator.admin),
                "worker" => (None, config.worker.admin),
                other => panic!("{name}: there is no role {other}"),
            };
            let open = listens.map(|addr| (addr.ip().is_unspecified(), addr.port()));
            let declared = port(container, "http").or(port(container, "hub"));
            assert_eq!(open, declared.map(|port| (true, port)), "{name}");
            assert_eq!(admin.map(|addr| addr.port()), port(container, "admin"), "{name}");
        }
    }
}

/// Each role and each pool has its own secret, and the coordinator has digests only.
#[test]
fn each_workload_has_its_own_credential_known_to_the_coordinator() {
    for size in SIZES {
        let release = LoadedRelease::of(
            &[size, &["--set", "mesh.operatorSecret=faultline-mesh-operator"][..]].concat(),
        );
        let containers = release.containers();
        let hub = containers[format!("{NAME}-coordinator").as_str()];
        for variable in list(hub, "/env") {
            let reference = &variable["valueFrom"]["secretKeyRef"];
            assert_ne!(reference["key"], "token", "the coordinator has digests only");
        }
        let config = release.load(&environment(hub));
        assert!(config.mesh.token.is_none());
        let known = Credentials::load(&config.mesh, config.coordinator.port());
        let known = known.unwrap_or_else(|e| panic!("{size:?}: {e}"));
        let mut names = BTreeSet::new();
        for (name, container) in &containers {
            let role = match role(container) {
                "gateway" => Role::Gateway,
                "worker" => Role::Worker,
                _ => continue,
            };
            let token = release.load(&environment(container)).mesh.token.expect("it has a token");
            let bearer = format!("Bearer {}", token.reveal()).parse().expect("a header");
            let headers = [(http::header::AUTHORIZATION, bearer)].into_iter().collect();
            let identity = known.identify(&headers).expect("the credential is known");
            assert_eq!(identity.role(), Some(role), "{name}");
            assert!(names.insert(identity.name().to_owned()), "{name}");
            assert!(!identity.may_offer("another"), "{name}");
            for agent in release.load(&environment(container)).worker.agents {
                let own = !env_of(container, "FAULTLINE_WORKER__AGENTS").is_empty();
                assert!(!own || identity.may_offer(&agent), "{name}: {agent}");
            }
        }
    }
}

fn env_of<'a>(container: &'a Value, key: &str) -> &'a str {
    let found = list(container, "/env").iter().find(|v| text(v, "/name") == key);
    found.map_or("", |variable| text(variable, "/value"))
}

#[test]
fn gateways_and_workers_dial_the_coordinator_service() {
    for size in SIZES {
        let release = LoadedRelease::of(size);
        let containers = release.containers();
        let hub = format!("{NAME}-coordinator");
        let config = release.load(&environment(containers[hub.as_str()]));
        let services = of_kind(&release.objects, "Service");
        let find = |one: &str| services.iter().find(|s| name(s) == one).map(|s| &s["spec"]);
        let headless = format!("{hub}-headless");
        let all = find(&headless).expect("one service lists all coordinators");
        assert_eq!(all["clusterIP"], "None", "headless");
        assert_eq!(all["publishNotReadyAddresses"], false, "a draining coordinator is not listed");
        let any = find(&hub).expect("another service has one address for all");
        assert!(any.get("clusterIP").is_none(), "it has a cluster address");
        assert_eq!((&any["selector"], &any["ports"]), (&all["selector"], &all["ports"]));
        let port = &all["ports"][0]["port"];
        let scheme = if config.coordinator.tls.is_some() { "https" } else { "http" };
        let expected = format!("{scheme}://{headless}.{NAMESPACE}.svc:{port}");
        for (name, container) in containers {
            let env = environment(container);
            let config = release.load(&env);
            let dials = match role(container) {
                "gateway" => config.gateway.coordinator,
                "worker" => config.worker.coordinator,
                _ => continue,
            };
            assert_eq!(dials, expected, "{name}");
            assert_eq!(config.mesh.ca.is_some(), scheme == "https", "{name} trusts its CA");
        }
    }
}

/// Users copy the names of secrets and certificates from these documents.
#[test]
fn readme_names_every_secret_and_host_of_the_chart() {
    let read = |file: &str| fs::read_to_string(chart().join(file)).expect("it is there");
    let readme = read("README.md");
    let hub = format!("{NAME}-coordinator.{NAMESPACE}.svc");
    let all = format!("{NAME}-coordinator-headless.{NAMESPACE}.svc");
    for expected in [STORE_CA, &hub, &all] {
        assert!(readme.contains(expected), "README.md does not contain {expected}");
    }
    assert!(read("values.yaml").contains(STORE_CA));
    let objects = rendered(SIZES[2]);
    let mut secrets = BTreeSet::new();
    workloads(&objects).into_iter().for_each(|workload| secrets_of(workload, &mut secrets));
    assert!(secrets.contains("faultline-store-ca"), "{secrets:?}");
    for secret in secrets {
        assert!(readme.contains(&format!(" {secret} ")), "README.md does not create {secret}");
    }
}

/// Users of a forwarded port dial a name of the certificate.
#[test]
fn notes_dial_a_name_of_the_certificate() {
    let readme = fs::read_to_string(chart().join("README.md")).expect("there is a README");
    let mut names = readme.lines().filter(|line| line.starts_with("printf 'subjectAltName="));
    let names = names.next_back().expect("it creates the certificate of the gateway");
    for (size, expected) in [(SIZES[0], None), (SIZES[2], Some("localhost"))] {
        let args = ["install", RELEASE, ".", "--namespace", NAMESPACE, "--dry-run=client"];
        let output = helm(&args, size);
        let printed = String::from_utf8(output.stdout).expect("it is text");
        let (_, notes) = printed.split_once("\nNOTES:\n").expect("it has notes");
        let urls = notes.split_whitespace().filter_map(|word| word.strip_prefix("https://"));
        let hosts: Vec<_> = urls.filter_map(|url| url.split(':').next()).collect();
        assert_eq!(hosts.last().copied(), expected, "{notes}");
        for host in hosts {
            assert!(
                names.split(' ').any(|name| name == host),
                "no certificate has the name {host}"
            );
        }
    }
}

/// Connections of a coordinator besides those for reads: one to write, one to listen, one for the
/// lease.
const CONNECTIONS_OWN: u64 = 3;

#[test]
fn readme_counts_database_connections_correctly() {
    let readme = fs::read_to_string(chart().join("README.md")).expect("there is a README");
    let unset = serde_json::to_value(faultline_coordinator::Config::default()).expect("JSON");
    let reads = unset["store_connections"].as_u64().expect("a number");
    let objects = rendered(SIZES[2]);
    let deployments = of_kind(&objects, "Deployment").into_iter();
    let mut coordinators = deployments.filter(|d| name(d).ends_with("-coordinator"));
    let spec = &coordinators.next().expect("there are coordinators")["spec"];
    let number = |pointer| spec.pointer(pointer).and_then(Value::as_u64).expect("a number");
    let replicas = number("/replicas");
    let more = number("/strategy/rollingUpdate/maxSurge");
    let all = (replicas + more) * (reads + CONNECTIONS_OWN);
    let sum = format!("({replicas} + {more}) × ({reads} + {CONNECTIONS_OWN}) = {all}");
    assert!(readme.contains(&sum), "README.md does not contain {sum}");
}

/// A connection pooler drops the options that coordinators connect with, so the role has to set
/// them.
#[test]
fn readme_sets_connection_options_on_the_role() {
    let readme = fs::read_to_string(chart().join("README.md")).expect("there is a README");
    let address = root().join("services/coordinator/src/store/postgres/address.rs");
    let source = fs::read_to_string(address).expect("it is there");
    let asked = source.lines().filter_map(|line| line.split_once("&str = \"-c "));
    let settings: Vec<_> = asked
        .flat_map(|(_, asked)| asked.trim_end_matches(['"', ';']).split("-c "))
        .map(|setting| setting.trim().split_once('=').expect("a name and a value"))
        .collect();
    assert_eq!(settings.len(), 5, "{settings:?}");
    for (name, value) in settings {
        let value = if value == "off" { value.to_owned() } else { format!("'{value}'") };
        let line = format!("ALTER ROLE faultline SET {name} = {value};");
        assert!(readme.contains(&line), "README.md does not contain {line}");
    }
}

/// Every secret that an object refers to.
fn secrets_of<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    if let Some(map) = value.as_object() {
        let key = map.get("secretKeyRef").map(|reference| text(reference, "/name"));
        found.extend(key.or(map.get("secretName").and_then(Value::as_str)));
    }
    let below = value.as_object().into_iter().flat_map(|map| map.values());
    below.chain(value.as_array().into_iter().flatten()).for_each(|v| secrets_of(v, found));
}

/// Values that are not set keep the defaults of the binary.
#[test]
fn tuning_values_reach_the_configuration() {
    let hub = format!("{NAME}-coordinator");
    let gateway = format!("{NAME}-gateway");
    let unset = serde_json::to_value(faultline_coordinator::Config::default()).expect("JSON");
    let [lease, connections] = [&unset["lease_ms"], &unset["store_connections"]];
    assert_eq!((lease, connections), (&json!(6000), &json!(8)), "the defaults in values.yaml");
    for (size, delay, lease, connections, hours) in [
        (SIZES[0], 5000, lease, connections, Value::Null),
        (SIZES[1], 5000, lease, connections, json!(720)),
        (SIZES[2], 5000, lease, connections, json!(720)),
        (SIZES[5], 12500, &json!(20000), &json!(4), Value::Null),
    ] {
        let release = LoadedRelease::of(size);
        let containers = release.containers();
        let read = |name: &str| release.load(&environment(containers[name]));
        let gateway = serde_json::to_value(read(&gateway).gateway).expect("JSON");
        assert_eq!(gateway["drain_delay_ms"], delay, "{size:?}");
        let coordinator = serde_json::to_value(read(&hub).coordinator).expect("JSON");
        assert_eq!(&coordinator["lease_ms"], lease, "{size:?}");
        assert_eq!(&coordinator["store_connections"], connections, "{size:?}");
        assert_eq!(coordinator["keep_ended_hours"], hours, "{size:?}");
    }
}

#[test]
fn every_named_file_is_mounted() {
    for size in SIZES {
        let release = LoadedRelease::of(size);
        for workload in workloads(&release.objects) {
            let pod = &workload["spec"]["template"]["spec"];
            let container = &list(pod, "/containers")[0];
            let mounts = list(container, "/volumeMounts");
            for (variable, path) in environment(container) {
                // A store URL may contain a file too.
                let path = path.split_once("sslrootcert=").map_or(&*path, |(_, path)| path);
                let is_path = path.starts_with('/');
                let mounted = |m: &Value| path.starts_with(text(m, "/mountPath"));
                assert!(!is_path || mounts.iter().any(mounted), "{variable} is {path}");
            }
            let claims = list(workload, "/spec/volumeClaimTemplates").iter();
            let claims = claims.map(|claim| &claim["metadata"]["name"]);
            let volumes = list(pod, "/volumes").iter().map(|volume| &volume["name"]);
            let volumes: Vec<_> = volumes.chain(claims).collect();
            for mount in mounts {
                assert!(volumes.contains(&&mount["name"]), "{}: {mount}", name(workload));
            }
        }
    }
}

#[test]
fn every_service_selects_pods_with_its_port() {
    for size in SIZES {
        let objects = rendered(size);
        for service in of_kind(&objects, "Service") {
            let selected = workloads(&objects).into_iter().filter(|workload| {
                let labels = &workload["spec"]["template"]["metadata"]["labels"];
                selects(&service["spec"]["selector"], labels)
            });
            let target = text(service, "/spec/ports/0/targetPort");
            let mut found = 0;
            for workload in selected {
                let container = &workload["spec"]["template"]["spec"]["containers"][0];
                found += usize::from(port(container, target).is_some());
            }
            assert!(found > 0, "{size:?}: {} selects no pod with its port", name(service));
        }
        for set in of_kind(&objects, "StatefulSet") {
            let service = text(set, "/spec/serviceName");
            assert!(of_kind(&objects, "Service").iter().any(|s| name(s) == service));
        }
    }
}

#[test]
fn object_names_are_unique_and_belong_to_the_release() {
    for size in SIZES {
        let objects = rendered(size);
        let mut seen = BTreeSet::new();
        for object in &objects {
            assert!(seen.insert((kind(object), name(object))), "{} {}", kind(object), name(object));
            assert!(name(object).starts_with(NAME) && name(object).len() <= 63, "{}", name(object));
            assert_eq!(text(object, "/metadata/labels/app.kubernetes.io~1instance"), "mesh");
        }
    }
}

/// All roles of a small release in one process, on an in-memory network, with the environment of
/// their pods: callers are authenticated, a task runs, and operators see tasks of all callers.
#[tokio::test(flavor = "multi_thread")]
async fn mesh_starts_with_the_environment_of_its_pods() {
    let release = LoadedRelease::of(&[]);
    let mut env = Environment::new();
    for container in release.containers().values() {
        env.extend(environment(container));
    }
    let store = format!("sqlite:{}", release.dir.path().join("faultline.db").display());
    env.insert("FAULTLINE_COORDINATOR__STORE".to_owned(), store);
    // The token of a gateway or worker: this process has its own for all roles.
    env.remove("FAULTLINE_MESH__TOKEN");
    let mut config = release.load(&env);
    config.mesh.network = Some(Network::default());
    // An address that other machines could reach, so that tokens are required.
    config.gateway.listen.set_ip(POD);
    config.coordinator.listen.set_ip(POD);
    assert!(!config.gateway.insecure && !config.coordinator.insecure);
    let mesh = LocalMesh::start(config.clone()).await.expect("a mesh starts");
    let client = |token: Option<&str>| {
        let network = config.mesh.network.clone().expect("it was given one");
        let builder = Client::builder(&mesh.url()).network(network);
        let builder = token.into_iter().fold(builder, Builder::bearer);
        builder.direct().expect("an address")
    };
    let hello = || client::text("hello");
    let refused = client(None).agent("echo").run(hello()).await.unwrap_err();
    assert_eq!(refused.failure().expect("it is a failure").reason, "UNAUTHENTICATED_CALLER");
    let [caller, operator] =
        [&callers().caller, &callers().operator].map(|token| client(Some(token)));
    assert_eq!(caller.agent("echo").run(hello()).await.expect("it is answered").text(), "hello");
    let asked = TasksRequest::default();
    let refused = caller.mesh::<_, TasksResponse>("Tasks", &asked).await.unwrap_err();
    assert_eq!(refused.failure().expect("it is a failure").reason, "INSUFFICIENT_SCOPE");
    let all: TasksResponse = operator.mesh("Tasks", &asked).await.expect("it is answered");
    assert_eq!(all.tasks.len(), 1, "the caller's");
    mesh.stop().await.expect("it drains");
}
