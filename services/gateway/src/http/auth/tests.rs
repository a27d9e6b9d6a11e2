//! Tokens, principals and scopes.

use super::*;

/// `printf %s secret | sha256sum`, and of `other`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
const OTHER: &str = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";

fn token(sha256: &str, principal: &str) -> Token {
    let sha256 = sha256.to_owned();
    let principal = principal.to_owned();
    Token { sha256, principal, agents: Vec::new(), scopes: usual_scopes() }
}

fn authenticator(token: Vec<Token>) -> Authenticator {
    Authenticator::new(&Auth { token }).unwrap()
}

fn headers(values: &[&str]) -> HeaderMap {
    values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect()
}

#[test]
fn callers_are_local_without_configured_tokens() {
    let authenticator = authenticator(Vec::new());
    for sent in [&[][..], &["Bearer whatever"], &["Basic eDp5"]] {
        let principal = authenticator.authenticate(&headers(sent)).unwrap();
        let caller = principal.caller();
        assert_eq!((caller.principal.as_str(), caller.operates), ("local", true));
        assert!(caller.agents.is_empty());
    }
}

#[test]
fn token_authenticates_its_principal() {
    let upper = SECRET.to_uppercase();
    let authenticator = authenticator(vec![token(&upper, "acme"), token(OTHER, "beta")]);
    for (sent, name) in [
        ("Bearer secret", "acme"),
        ("bearer secret", "acme"),
        ("BEARER   secret ", "acme"),
        ("Bearer other", "beta"),
    ] {
        let principal = authenticator.authenticate(&headers(&[sent])).unwrap();
        assert_eq!(principal.caller().principal, name, "{sent}");
        assert!(!principal.caller().operates);
    }
}

#[test]
fn unknown_tokens_are_rejected() {
    let authenticator = authenticator(vec![token(SECRET, "acme")]);
    let hint = |sent: &[&str]| {
        let failure = authenticator.authenticate(&headers(sent)).unwrap_err();
        assert_eq!(failure.row(), &reason::UNAUTHENTICATED_CALLER, "{sent:?}");
        failure.public_message.clone()
    };
    let missing = hint(&[]);
    assert!(missing.contains("Authorization: Bearer"), "{missing}");
    for none in
        [&["Bearer "][..], &["Bearer"], &["Basic secret"], &["Bearer secret", "Bearer secret"]]
    {
        assert_eq!(hint(none), missing, "{none:?}");
    }
    // A nearly right token gets the same answer as an entirely wrong one.
    let wrong = hint(&["Bearer nonsense"]);
    assert_ne!(wrong, missing);
    for near in ["Bearer secre", "Bearer secrets", "Bearer Secret", &format!("Bearer {SECRET}")] {
        assert_eq!(hint(&[near]), wrong, "{near}");
    }
}

#[test]
fn missing_scope_is_named() {
    let mut reader = token(SECRET, "acme");
    reader.scopes = vec![Scope::Read];
    let authenticator = authenticator(vec![reader]);
    let principal = authenticator.authenticate(&headers(&["Bearer secret"])).unwrap();
    assert!(principal.require_scope(Scope::Read).is_ok());
    for (scope, name) in [(Scope::Send, "'send'"), (Scope::Operate, "'operate'")] {
        let failure = principal.require_scope(scope).unwrap_err();
        assert_eq!(failure.row(), &reason::INSUFFICIENT_SCOPE);
        assert!(failure.public_message.contains(name), "{}", failure.public_message);
    }
}

#[test]
fn invalid_token_entry_is_named() {
    let agent = |name: &str| {
        let mut token = token(OTHER, "acme");
        token.agents = vec!["echo".to_owned(), name.to_owned()];
        token
    };
    let mut idle = token(OTHER, "acme");
    idle.scopes.clear();
    let bad_name = |name: &str| TokenProblem::Agent(check_agent_name(name).unwrap_err());
    for (entry, wrong) in [
        (token("secret", "acme"), TokenProblem::Digest),
        (token(&SECRET.replace('2', "g"), "acme"), TokenProblem::Digest),
        (token(&"é".repeat(32), "acme"), TokenProblem::Digest),
        (token(SECRET, "acme"), TokenProblem::Twice(0)),
        (token(OTHER, ""), TokenProblem::Principal),
        (token(OTHER, &"x".repeat(257)), TokenProblem::Principal),
        (token(OTHER, "faultline.dev/stops"), TokenProblem::OwnPrincipal),
        (token(OTHER, "faultline.dev/other"), TokenProblem::OwnPrincipal),
        (agent("Echo"), bad_name("Echo")),
        (agent("mesh"), bad_name("mesh")),
        (idle, TokenProblem::NoScope),
    ] {
        let auth = Auth { token: vec![token(SECRET, "first"), entry.clone()] };
        let bad = Authenticator::new(&auth).err().unwrap();
        assert_eq!((bad.entry, &bad.wrong), (1, &wrong));
        assert!(bad.to_string().starts_with("auth.token[1]"), "{bad}");
    }
}

#[test]
fn token_without_agents_leaves_out_agents_for_drills() {
    let mut named = token(OTHER, "acme");
    named.agents = vec!["script".to_owned()];
    let authenticator = authenticator(vec![token(SECRET, "acme"), named]);
    let caller = |bearer| authenticator.authenticate(&headers(&[bearer])).unwrap().caller();
    assert!(caller("Bearer secret").without_drills);
    assert!(!caller("Bearer other").without_drills);
    assert!(!Authenticator::new(&Auth::default()).unwrap().local.caller().without_drills);
}

#[test]
fn token_is_read_with_its_defaults() {
    let read = |text: &str| serde_json::from_str::<Auth>(text);
    let short = format!(r#"{{"token":[{{"sha256":"{SECRET}","principal":"acme"}}]}}"#);
    let auth = read(&short).unwrap();
    assert_eq!(auth, Auth { token: vec![token(SECRET, "acme")] });
    assert_eq!(read(&serde_json::to_string(&auth).unwrap()).unwrap(), auth);
    for more in [r#""agents":[]"#, r#""scopes":["admin"]"#, r#""secret":"x""#] {
        let text = short.replace(r#""acme""#, &format!(r#""acme",{more}"#));
        assert!(read(&text).is_err(), "{more}");
    }
}
