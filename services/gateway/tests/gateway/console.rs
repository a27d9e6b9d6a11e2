//! The console as files: content types, security headers, caching, and authorization.

use faultline_gateway::{Auth, Config, Scope, Token};
use faultline_proto::reason;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::{Mesh, client::Client};

/// `printf %s secret | sha256sum`, and of `other`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
const OTHER: &str = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";

/// Sends a request and reads the answer as text.
async fn fetch(
    client: &mut Client,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, String) {
    let (head, body) = client.send(method, path, headers, "").await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

/// `acme` has the scope `read`, `ops` has `operate`.
fn known(config: &mut Config) {
    let token = |sha256: &str, principal: &str, scopes: &[Scope]| Token {
        sha256: sha256.to_owned(),
        principal: principal.to_owned(),
        agents: Vec::new(),
        scopes: scopes.to_vec(),
    };
    config.auth = Auth {
        token: vec![token(SECRET, "acme", &[Scope::Read]), token(OTHER, "ops", &[Scope::Operate])],
    };
}

/// All files of the console, found by following references as a browser does.
async fn files(client: &mut Client) -> Vec<String> {
    let mut found = vec!["/console/".to_owned()];
    let mut read = 0;
    while let Some(path) = found.get(read).cloned() {
        read += 1;
        let (.., text) = fetch(client, "GET", &path, &[]).await;
        let words = text.split('"').map(|word| word.trim_start_matches("./"));
        let is_file = |word: &&str| {
            let (name, ending) = word.split_once('.').unwrap_or_default();
            let plain = name.bytes().all(|byte| byte.is_ascii_lowercase());
            plain && ["js", "css", "svg"].contains(&ending)
        };
        for path in words.filter(is_file).map(|name| format!("/console/{name}")) {
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

#[tokio::test]
async fn every_console_file_is_served_with_its_content_type() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let files = files(&mut client).await;
    assert!(files.len() > 15, "{files:?}");
    for path in &files {
        let (status, headers, body) = fetch(&mut client, "GET", path, &[]).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        let kind = match path.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/javascript; charset=utf-8",
        };
        assert_eq!(headers["content-type"], kind, "{path}");
        assert_eq!(headers["content-length"], body.len().to_string(), "{path}");
    }
}

#[tokio::test]
async fn content_security_policy_allows_only_the_gateway() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for path in ["/console", "/console/", "/console/app.js", "/console/config.json"] {
        let (_, headers, _) = fetch(&mut client, "GET", path, &[]).await;
        let policy = headers["content-security-policy"].to_str().unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|one| one == rule), "{path}: {policy}");
        }
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["referrer-policy"], "no-referrer", "{path}");
        assert_eq!(headers["x-frame-options"], "DENY", "{path}");
    }
    let (.., page) = fetch(&mut client, "GET", "/console/", &[]).await;
    assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
}

#[tokio::test]
async fn current_console_file_is_answered_with_304() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for path in ["/console/", "/console/app.js", "/console/base.css", "/console/reasons.json"] {
        let (_, first, body) = fetch(&mut client, "GET", path, &[]).await;
        // Cached, but revalidated: a newer gateway has other files under the same names.
        assert_eq!(first["cache-control"], "no-cache", "{path}");
        let tag = first["etag"].to_str().unwrap();
        let (status, again, nothing) =
            fetch(&mut client, "GET", path, &[("if-none-match", tag)]).await;
        assert_eq!((status, nothing.as_str()), (StatusCode::NOT_MODIFIED, ""), "{path}");
        assert_eq!(again["etag"], tag);
        assert!(again.contains_key("content-security-policy"));
        let (status, _, other) =
            fetch(&mut client, "GET", path, &[("if-none-match", "\"x\"")]).await;
        assert_eq!((status, other == body), (StatusCode::OK, true), "{path}");
        let (status, head, nothing) = fetch(&mut client, "HEAD", path, &[]).await;
        assert_eq!((status, nothing.as_str()), (StatusCode::OK, ""), "{path}");
        assert_eq!(
            (&head["etag"], &head["content-length"]),
            (&first["etag"], &first["content-length"])
        );
    }
}

#[tokio::test]
async fn console_path_without_a_slash_redirects() {
    let mesh = Mesh::start().await;
    let (status, headers, _) = fetch(&mut mesh.client().await, "GET", "/console", &[]).await;
    // A relative redirect works behind a proxy that adds a path prefix.
    assert_eq!(
        (status, &headers["location"]),
        (StatusCode::PERMANENT_REDIRECT, &"console/".parse().unwrap())
    );
}

#[tokio::test]
async fn unknown_console_file_is_404() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    for path in [
        "/console/index.htm",
        "/console/tasks",
        "/console/../Cargo.toml",
        "/console/%2e%2e/lib.rs",
        "/console/..%2flib.rs",
        "/console//app.js",
        "/console/app.js/",
        "/console/APP.JS",
        "/console/app%2ejs",
    ] {
        let answer = client.ask("GET", path, &[], "").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
    }
    let answer = client.ask("POST", "/console/", &[], "{}").await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(answer.headers["allow"], "GET, HEAD");
}

#[tokio::test]
async fn console_can_be_switched_off() {
    let mesh = Mesh::start_with(|config| config.console = false).await;
    let mut client = mesh.client().await;
    for path in ["/console", "/console/", "/console/app.js", "/console/config.json"] {
        let answer = client.ask("GET", path, &[], "").await;
        assert_eq!(
            (answer.status, answer.reason()),
            (StatusCode::NOT_FOUND, "NOT_FOUND"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn console_files_are_public_and_their_data_is_for_operators() {
    let mesh = Mesh::start_with(known).await;
    let mut client = mesh.client().await;
    for path in ["/console", "/console/", "/console/app.js", "/console/reasons.json"] {
        let (status, ..) = fetch(&mut client, "GET", path, &[]).await;
        assert!(status.is_success() || status.is_redirection(), "{path}: {status}");
    }
    let path = "/console/config.json";
    let stranger = client.ask("GET", path, &[], "").await;
    assert_eq!(stranger.status, StatusCode::UNAUTHORIZED);
    assert_eq!(stranger.headers["www-authenticate"], "Bearer realm=\"faultline\"");
    let acme = client.ask("GET", path, &[("authorization", "Bearer secret")], "").await;
    assert_eq!((acme.status, acme.reason()), (StatusCode::FORBIDDEN, "INSUFFICIENT_SCOPE"));
    let ops = client.ask("GET", path, &[("authorization", "Bearer other")], "").await;
    assert_eq!(
        (ops.status, &ops.headers["cache-control"]),
        (StatusCode::OK, &"no-store".parse().unwrap())
    );
    assert_eq!(ops.body["acts"], false);
}

#[tokio::test]
async fn console_configuration_tells_whether_operators_act() {
    let mesh = Mesh::start_with(|config| config.operators_act = true).await;
    let config = mesh.client().await.ask("GET", "/console/config.json", &[], "").await.body;
    assert_eq!(config, json!({"acts": true, "version": env!("CARGO_PKG_VERSION")}));
}

#[tokio::test]
async fn foreign_page_cannot_read_the_console_configuration() {
    let mesh = Mesh::start().await;
    let mut client = mesh.client().await;
    let elsewhere = [("host", "evil.example")];
    let answer = client.ask("GET", "/console/config.json", &elsewhere, "").await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn console_gets_the_table_of_reasons() {
    let mesh = Mesh::start().await;
    let (_, headers, body) =
        fetch(&mut mesh.client().await, "GET", "/console/reasons.json", &[]).await;
    assert_eq!(headers["content-type"], "application/json");
    let rows: Vec<Value> = serde_json::from_str(&body).unwrap();
    assert_eq!(rows.len(), reason::TABLE.len());
    for (row, known) in rows.iter().zip(reason::TABLE) {
        assert_eq!((&row["name"], &row["domain"]), (&json!(known.name), &json!(known.domain)));
        assert_eq!((&row["title"], &row["help"]), (&json!(known.title), &json!(known.help)));
        assert_eq!(row.get("actor"), None, "the advice names the actor");
    }
    // The party to act comes from the advice, not from this table.
    for page in ["chain.js", "failures.js", "reasons.js"] {
        let path = format!("/console/{page}");
        let (_, _, text) = fetch(&mut mesh.client().await, "GET", &path, &[]).await;
        for own in ["the owner of", "the operator of", "actor"] {
            assert!(!text.contains(own), "{page} has '{own}'");
        }
    }
}
