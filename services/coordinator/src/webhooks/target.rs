//! The target of a webhook: URL and headers, validated when the configuration is created (SSRF
//! guard).

use faultline_chassis::{dial, limits};
use faultline_proto::a2a::TaskPushNotificationConfig;
use http::{
    HeaderMap, HeaderValue, Uri,
    header::AUTHORIZATION,
    uri::{Authority, Scheme},
};
use tokio::time::timeout;

use crate::error::Error;
use crate::webhooks::Push;

/// The header that repeats the configuration's token, so that the receiver knows its own.
const TOKEN: &str = "x-a2a-notification-token";

/// A webhook and the headers that are its own.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) url: Uri,
    pub(crate) host: String,
    pub(crate) headers: HeaderMap,
}

impl Target {
    pub(crate) fn of(config: &TaskPushNotificationConfig) -> Result<Self, Error> {
        check_length("id", &config.id, limits::KEY_BYTES_MAX)?;
        check_length("url", &config.url, limits::PUSH_URL_BYTES_MAX)?;
        let url = read_url(&config.url).map_err(|what| invalid("url", what))?;
        let host = url.host().unwrap_or_default().to_owned();
        let mut headers = HeaderMap::new();
        if !config.token.is_empty() {
            headers.insert(TOKEN, secret("token", &config.token)?);
        }
        if let Some(authentication) = &config.authentication {
            let field = "authentication.credentials";
            check_length(field, &authentication.credentials, limits::PUSH_SECRET_BYTES_MAX)?;
            if authentication.scheme.is_empty() {
                let what = "say which, such as Bearer, or leave authentication out";
                return Err(invalid("authentication.scheme", what));
            }
            let both = format!("{} {}", authentication.scheme, authentication.credentials);
            headers.insert(AUTHORIZATION, secret(field, both.trim_end())?);
        }
        Ok(Self { url, host, headers })
    }

    pub(crate) fn port(&self) -> u16 {
        self.url.port_u16().unwrap_or_else(|| default_port(&self.url))
    }

    /// As its name resolves now; when it is dialled, the address is checked again.
    pub(crate) async fn check_reachable(&self, rules: &Push) -> Result<(), Error> {
        if rules.allow_private {
            return Ok(());
        }
        let looking = dial::check_public(&self.host, self.port());
        let looking = timeout(limits::CONNECT_TIMEOUT, looking);
        let Ok(found) = looking.await else {
            let what = format!("the address of '{}' takes too long to find: try again", self.host);
            return Err(invalid("url", what));
        };
        found.map_err(|error| {
            // One text for both cases: callers must not learn how names resolve inside.
            tracing::info!(host = self.host, %error, "a webhook was refused");
            let what = format!(
                "'{}' is no public host: use one, or ask the operator for push.allow_private",
                self.host
            );
            invalid("url", what)
        })
    }
}

pub(crate) fn invalid(field: &'static str, what: impl Into<String>) -> Error {
    Error::Invalid { field, what: what.into() }
}

fn read_url(text: &str) -> Result<Uri, &'static str> {
    let whole = "say where to, such as https://example.org/hook";
    let url: Uri = text.parse().map_err(|_| whole)?;
    if url.scheme() != Some(&Scheme::HTTPS) && url.scheme() != Some(&Scheme::HTTP) {
        return Err("only https and http are called");
    }
    let authority = url.authority().map_or("", Authority::as_str);
    if authority.contains('@') {
        return Err("put the user and password into authentication");
    }
    let port = url.authority().and_then(|a| a.as_str().strip_prefix(a.host()));
    if port.is_some_and(|port| !port.is_empty()) && url.port_u16().is_none_or(|port| port == 0) {
        return Err("the port must be a number from 1 to 65535");
    }
    match url.host() {
        Some(host) if !host.is_empty() => Ok(url),
        _ => Err(whole),
    }
}

fn default_port(url: &Uri) -> u16 {
    if url.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 }
}

fn check_length(field: &'static str, text: &str, most: usize) -> Result<(), Error> {
    match text.len() > most {
        true => Err(invalid(field, format!("at most {most} bytes"))),
        false => Ok(()),
    }
}

/// A header that no log shows.
fn secret(field: &'static str, text: &str) -> Result<HeaderValue, Error> {
    check_length(field, text, limits::PUSH_SECRET_BYTES_MAX)?;
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| invalid(field, "must be text that fits into a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use faultline_proto::a2a::AuthenticationInfo;

    use super::*;

    fn config(url: &str) -> TaskPushNotificationConfig {
        TaskPushNotificationConfig { url: url.to_owned(), ..Default::default() }
    }

    fn refused(config: &TaskPushNotificationConfig) -> &'static str {
        match Target::of(config) {
            Err(Error::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn webhook_url_must_be_callable() {
        for good in ["https://example.org/hook?x=1", "http://[::1]:8080", "http://10.0.0.1/"] {
            assert!(Target::of(&config(good)).is_ok(), "{good}");
        }
        let long = format!("https://example.org/{}", "x".repeat(limits::PUSH_URL_BYTES_MAX));
        for bad in ["", "/hook", "example.org", "ftp://x/", "https://u:p@x/", "http://", &long] {
            assert_eq!(refused(&config(bad)), "url", "{bad}");
        }
    }

    #[test]
    fn value_unfit_for_a_header_is_rejected_by_name() {
        let with = |token: &str, scheme: &str, credentials: &str| TaskPushNotificationConfig {
            token: token.to_owned(),
            authentication: Some(AuthenticationInfo {
                scheme: scheme.to_owned(),
                credentials: credentials.to_owned(),
            }),
            ..config("https://example.org")
        };
        assert_eq!(refused(&with("a\r\nb: c", "Bearer", "x")), "token");
        assert_eq!(refused(&with("", "", "x")), "authentication.scheme");
        assert_eq!(refused(&with("", "Bearer", "x\ny")), "authentication.credentials");
        let headers = Target::of(&with("mine", "Bearer", "x")).unwrap().headers;
        assert_eq!(
            (&headers[AUTHORIZATION], &headers[TOKEN]),
            (&"Bearer x".parse().unwrap(), &"mine".parse().unwrap())
        );
        assert!(!format!("{headers:?}").contains("mine"), "secrets do not show");
        let headers = Target::of(&with("", "Custom", "")).unwrap().headers;
        assert_eq!(headers[AUTHORIZATION], "Custom");
    }

    #[tokio::test]
    async fn private_webhook_address_is_rejected_unless_allowed() {
        let target = Target::of(&config("http://localhost:1/")).unwrap();
        let error = target.check_reachable(&Push::default()).await.unwrap_err().to_string();
        assert!(error.contains("localhost") && error.contains("allow_private"), "{error}");
        let allowed = Push { allow_private: true, ..Push::default() };
        assert!(target.check_reachable(&allowed).await.is_ok());
    }
}
