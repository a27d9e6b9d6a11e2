//! Layers of configuration and the errors of each.

use serde::Deserialize;

use super::*;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tree {
    gateway: Gateway,
    worker: Worker,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Gateway {
    listen: Option<std::net::SocketAddr>,
    public_url: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Worker {
    agents: Vec<String>,
    slots: u32,
    name: Option<String>,
    policy: BTreeMap<String, Policy>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Policy {
    attempts: u32,
}

impl Default for Worker {
    fn default() -> Self {
        let policy = BTreeMap::new();
        Self { agents: vec!["echo".into()], slots: 64, name: None, policy }
    }
}

fn load_text(text: &str, env: &[(&str, &str)]) -> Result<Tree, String> {
    let env = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let file = File { name: "faultline.toml", text };
    load(&Tree::default(), Some(file), &env).map_err(|e| e.to_string())
}

#[test]
fn each_layer_overrides_the_one_below() {
    let text = "[worker]\nslots = 8\nagents = ['a', 'b']\n";
    let tree = load_text(text, &[("FAULTLINE_WORKER__SLOTS", "9")]).unwrap();
    assert_eq!((tree.worker.slots, tree.worker.agents.len()), (9, 2));
    let plain = load_text("", &[]).unwrap();
    assert_eq!(plain, Tree::default());
}

#[test]
fn defaults_are_the_lowest_layer() {
    let mut defaults = Tree::default();
    defaults.worker.slots = 7;
    defaults.gateway.public_url = Some("http://here".into());
    let file = File { name: "f", text: "[gateway]\nlisten = '127.0.0.1:0'" };
    let tree = load(&defaults, Some(file), &Environment::new()).unwrap();
    assert_eq!(tree.worker.slots, 7);
    assert_eq!(tree.gateway.public_url.as_deref(), Some("http://here"));
    assert!(tree.gateway.listen.is_some());
}

#[test]
fn variable_is_parsed_by_the_type_of_its_key() {
    let tree = load_text(
        "",
        &[
            ("FAULTLINE_WORKER__NAME", "7"),
            ("FAULTLINE_WORKER__AGENTS", "echo, script"),
            ("FAULTLINE_WORKER__POLICY__ECHO__ATTEMPTS", "5"),
            ("FAULTLINE_GATEWAY__LISTEN", "127.0.0.1:9"),
        ],
    )
    .unwrap();
    assert_eq!(tree.worker.name.as_deref(), Some("7"));
    assert_eq!(tree.worker.agents, ["echo", "script"]);
    assert_eq!(tree.worker.policy["echo"].attempts, 5);
    assert_eq!(tree.gateway.listen.map(|a| a.port()), Some(9));
    let list = load_text("", &[("FAULTLINE_WORKER__AGENTS", "[\"x\"]")]).unwrap();
    assert_eq!(list.worker.agents, ["x"]);
}

#[test]
fn other_variables_are_ignored() {
    let env = [
        ("FAULTLINE_GATEWAY_PORT", "tcp://10.0.0.1:8080"),
        ("FAULTLINE_GATEWAY_URL", "http://x"),
        ("GATEWAY__LISTEN", "nonsense"),
    ];
    assert_eq!(load_text("", &env).unwrap(), Tree::default());
}

#[test]
fn unknown_key_suggests_the_nearest() {
    let e = load_text("\n[gatway]\n", &[]).unwrap_err();
    assert_eq!(e, "faultline.toml:2: unknown key `gatway`; did you mean `gateway`?");
    let e = load_text("[gateway]\n# why\nlsiten = 'x'\n", &[]).unwrap_err();
    assert_eq!(e, "faultline.toml:3: unknown key `lsiten` in [gateway]; did you mean `listen`?");
    let e = load_text("zzzzzz = 1", &[]).unwrap_err();
    assert_eq!(e, "faultline.toml:1: unknown key `zzzzzz`; known are gateway, worker");
    let e = load_text("", &[("FAULTLINE_WORKER__SLTOS", "1")]).unwrap_err();
    assert_eq!(
        e,
        "FAULTLINE_WORKER__SLTOS: unknown key `sltos` in [worker]; did you mean `slots`?"
    );
}

#[test]
fn wrong_value_names_its_key() {
    let e = load_text("[worker]\nslots = 'many'\n", &[]).unwrap_err();
    assert!(e.starts_with("faultline.toml:2: `worker.slots`: invalid type: string"), "{e}");
    let e = load_text("", &[("FAULTLINE_WORKER__SLOTS", "many")]).unwrap_err();
    assert!(e.starts_with("FAULTLINE_WORKER__SLOTS: `worker.slots`: "), "{e}");
    let e = load_text("", &[("FAULTLINE_WORKER__SLOTS", "-1")]).unwrap_err();
    assert!(e.contains("-1"), "{e}");
    let e = load_text("a = [", &[]).unwrap_err();
    assert!(e.starts_with("faultline.toml:1: "), "{e}");
}

#[test]
fn list_is_replaced_as_a_whole() {
    let e = load_text("", &[("FAULTLINE_WORKER__AGENTS__0__NAME", "x")]).unwrap_err();
    let expected = "FAULTLINE_WORKER__AGENTS__0__NAME: `worker.agents`: is a list, which is set as \
                a whole: FAULTLINE_WORKER__AGENTS='[…]', as in TOML";
    assert_eq!(e, expected);
    let e = load_text("", &[("FAULTLINE_WORKER__AGENTS", "[\"x\"")]).unwrap_err();
    let expected = "FAULTLINE_WORKER__AGENTS: `worker.agents`: is not good TOML: ";
    assert!(e.starts_with(expected), "{e}");
    let text = load_text("", &[("FAULTLINE_WORKER__NAME", "[x")]).unwrap();
    assert_eq!(text.worker.name.as_deref(), Some("[x"), "a key of type text takes it as text");
}

#[test]
fn nearest_name_is_within_a_few_edits() {
    assert_eq!(nearest("rate_limit", ["RATE_LIMITED", "OVERLOADED"]), Some("RATE_LIMITED"));
    assert_eq!(nearest("xyz", ["RATE_LIMITED"]), None);
    assert_eq!(distance("listen", "lsiten"), 1);
}
