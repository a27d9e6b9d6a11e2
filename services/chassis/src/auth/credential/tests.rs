//! Loading of credentials: accepted, refused, generated.

use super::*;
use crate::net::network::Network;

/// `printf %s secret | sha256sum`, and of `other`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
const OTHER: &str = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";

fn port(listen: &str) -> Port {
    Port { listen: listen.parse().unwrap(), shared_store: false }
}

fn here() -> Port {
    port("127.0.0.1:0")
}

fn everywhere() -> Port {
    port("0.0.0.0:8081")
}

fn entry(role: Role, sha256: &str) -> Credential {
    let agents = if role == Role::Worker { vec!["*".to_owned()] } else { Vec::new() };
    Credential { role, sha256: sha256.to_owned(), agents, name: None }
}

fn with(credential: Vec<Credential>) -> MeshConfig {
    MeshConfig { credential, ..MeshConfig::default() }
}

fn token(text: &str) -> Option<Secret> {
    Some(Secret::new(text).unwrap())
}

fn headers(values: &[&str]) -> HeaderMap {
    values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect()
}

#[test]
fn token_has_its_configured_role() {
    let refunds = Credential {
        agents: vec!["refunds".into()],
        ..entry(Role::Worker, &SECRET.to_uppercase())
    };
    let operator = Credential { name: Some("ops".into()), ..entry(Role::Operator, OTHER) };
    let known = Credentials::load(&with(vec![refunds, operator]), everywhere()).unwrap();
    let worker = known.identify(&headers(&["Bearer secret"])).unwrap();
    assert_eq!((worker.role(), worker.name()), (Some(Role::Worker), "worker-2bb80d53"));
    assert!(worker.may_offer("refunds") && !worker.may_offer("billing"));
    assert!(worker.has(Role::Worker) && !worker.has(Role::Gateway) && !worker.has(Role::Operator));
    let operator = known.identify(&headers(&["bearer  other "])).unwrap();
    assert_eq!((operator.role(), operator.name()), (Some(Role::Operator), "ops"));
    assert!(!operator.may_offer("refunds"));
    assert_ne!(operator.binding(), worker.binding());
    for bad in [
        &[][..],
        &["Bearer"],
        &["Bearer "],
        &["Basic secret"],
        &["Bearer secre"],
        &["Bearer secret", "Bearer secret"],
        &[&format!("Bearer {SECRET}")],
    ] {
        let failure = known.identify(&headers(bad)).unwrap_err();
        assert_eq!(failure.row(), &reason::UNAUTHENTICATED, "{bad:?}");
        assert!(failure.public_message.contains("FAULTLINE_MESH__TOKEN_FILE"), "{failure}");
    }
}

#[test]
fn shared_token_has_every_role_on_loopback_and_in_process_only() {
    let mesh = MeshConfig { token: token("secret"), ..MeshConfig::default() };
    let inside = MeshConfig { network: Some(Network::new()), ..mesh.clone() };
    for (mesh, port) in [(&mesh, here()), (&mesh, port("[::1]:1")), (&inside, everywhere())] {
        let known = Credentials::load(mesh, port).unwrap();
        let all = known.identify(&headers(&["Bearer secret"])).unwrap();
        assert!([Role::Gateway, Role::Worker, Role::Operator].into_iter().all(|r| all.has(r)));
        assert!(all.may_offer("anything"));
    }
    let with_roles = MeshConfig { credential: vec![entry(Role::Gateway, OTHER)], ..mesh.clone() };
    for mesh in [mesh, with_roles] {
        let refused = Credentials::load(&mesh, everywhere()).unwrap_err().to_string();
        assert!(refused.contains(MIGRATION_PAGE), "{refused}");
        assert!(refused.contains("[[mesh.credential]]"), "{refused}");
    }
}

#[test]
fn token_is_generated_on_loopback_with_an_own_store_only() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = MeshConfig { data: Some(dir.path().join("data")), ..MeshConfig::default() };
    let refused = |port| Credentials::load(&mesh, port).unwrap_err().to_string();
    let exposed = refused(everywhere());
    assert!(exposed.contains("can be reached from other machines"), "{exposed}");
    let shared = refused(Port { shared_store: true, ..here() });
    assert!(shared.contains("FAULTLINE_MESH__TOKEN"), "{shared}");
    assert!(!dir.path().join("data").exists(), "nothing was generated");
    let known = Credentials::load(&mesh, here()).unwrap();
    let made = token_file::read(&dir.path().join("data/mesh.token")).unwrap().unwrap();
    let header = format!("Bearer {}", made.reveal());
    assert!(known.identify(&headers(&[&header])).is_ok());
    assert!(Credentials::load(&mesh, here()).unwrap().identify(&headers(&[&header])).is_ok());
    let named = MeshConfig { token_file: Some(dir.path().join("none")), ..mesh };
    let Err(Error::File(missing)) = Credentials::load(&named, here()) else { panic!("none") };
    let missing = missing.to_string();
    assert!(missing.contains("openssl rand -hex 32"), "{missing}");
}

#[test]
fn in_process_token_replaces_configuration_but_opens_no_public_port() {
    let dir = tempfile::tempdir().unwrap();
    let data = Some(dir.path().join("data"));
    let mesh = MeshConfig { in_process_token: token("secret"), data, ..MeshConfig::default() };
    let shared = Port { shared_store: true, ..here() };
    for port in [here(), shared] {
        let known = Credentials::load(&mesh, port).unwrap();
        assert!(known.identify(&headers(&["Bearer secret"])).is_ok());
    }
    assert!(!dir.path().join("data").exists());
    assert!(matches!(Credentials::load(&mesh, everywhere()), Err(Error::Unconfigured(_))));
}

#[test]
fn invalid_entry_is_named_with_its_remedy() {
    let worker = |agents: &[&str]| {
        let agents = agents.iter().map(|name| (*name).to_owned()).collect();
        Credential { agents, ..entry(Role::Worker, OTHER) }
    };
    let named = |name: &str| Credential { name: Some(name.into()), ..entry(Role::Gateway, OTHER) };
    let gateway = entry(Role::Gateway, OTHER);
    let bad_name = |name: &str| Wrong::Agent(check_agent_name(name).unwrap_err());
    for (second, wrong) in [
        (entry(Role::Gateway, "secret"), Wrong::Digest),
        (entry(Role::Gateway, &"é".repeat(32)), Wrong::Digest),
        (entry(Role::Operator, SECRET), Wrong::Twice(0)),
        (named("first"), Wrong::NameTwice(0)),
        (named(""), Wrong::Name),
        (named("two words"), Wrong::Name),
        (worker(&[]), Wrong::NoAgents),
        (worker(&["Refunds"]), bad_name("Refunds")),
        (worker(&["refunds", "*"]), bad_name("*")),
        (Credential { agents: vec!["a".into()], ..gateway }, Wrong::NotAWorker),
    ] {
        let first = Credential { name: Some("first".into()), ..entry(Role::Gateway, SECRET) };
        let refused = Credentials::load(&with(vec![first, second]), here()).unwrap_err();
        let Error::Entry { entry: 1, wrong: found, .. } = &refused else { panic!("{refused}") };
        assert_eq!(found, &wrong);
        assert!(refused.to_string().starts_with("mesh.credential[1] ("), "{refused}");
    }
    let mesh = MeshConfig { token: token("secret"), ..with(vec![entry(Role::Operator, SECRET)]) };
    let refused = Credentials::load(&mesh, here()).unwrap_err();
    assert!(matches!(refused, Error::Entry { wrong: Wrong::IsMeshToken, .. }), "{refused}");
}

#[test]
fn credential_of_the_documents_is_accepted() {
    let text = format!(
        "[[credential]]\nrole = 'worker'\nsha256 = '{SECRET}'\nagents = ['refunds']\n\
         [[credential]]\nrole = 'gateway'\nsha256 = '{OTHER}'\nname = 'edge'\n"
    );
    let mesh: MeshConfig = toml::from_str(&text).unwrap();
    assert_eq!(mesh.credential[0].agents, ["refunds"]);
    assert_eq!(mesh.credential[1].name.as_deref(), Some("edge"));
    for bad in ["role = 'admin'", "rol = 'worker'", "role = 'worker'\ntoken = 'x'"] {
        let text = format!("[[credential]]\nsha256 = '{SECRET}'\n{bad}\n");
        assert!(toml::from_str::<MeshConfig>(&text).is_err(), "{bad}");
    }
}
