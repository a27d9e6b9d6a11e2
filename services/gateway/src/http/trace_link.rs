//! Links to a trace viewer, from the template `trace_url` of the configuration.

use http::Uri;

/// The placeholder for the id of a trace.
const PLACE: &str = "{trace_id}";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceLink(String);

impl TraceLink {
    /// An invalid template is the error.
    pub(crate) fn new(template: String) -> Result<Self, String> {
        let made = template.replace(PLACE, "0").parse::<Uri>().ok();
        let web = made.filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
        let is_link = template.contains(PLACE) && web.is_some_and(|url| url.host().is_some());
        if is_link { Ok(Self(template)) } else { Err(template) }
    }

    /// The link to a trace; empty for text that is not a trace id.
    pub(crate) fn to(&self, trace_id: &str) -> String {
        let is_id = trace_id.len() == 32 && trace_id.bytes().all(|b| b.is_ascii_hexdigit());
        if is_id { self.0.replace(PLACE, trace_id) } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_link_contains_the_id_of_the_trace() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (template, expected) in [
            ("https://t.example/trace/{trace_id}", format!("https://t.example/trace/{id}")),
            ("http://[::1]:1/?a={trace_id}&b=1", format!("http://[::1]:1/?a={id}&b=1")),
        ] {
            assert_eq!(TraceLink::new(template.to_owned()).unwrap().to(id), expected);
        }
        let link = TraceLink::new("https://t.example/{trace_id}".to_owned()).unwrap();
        for none in
            ["", "x", "../../4bf92f3577b34da6a3ce929d0e0e", "4bf92f3577b34da6a3ce929d0e0e473é"]
        {
            assert_eq!(link.to(none), "", "{none}");
        }
    }

    #[test]
    fn invalid_trace_url_is_rejected() {
        for bad in [
            "",
            "{trace_id}",
            "https://t.example/",
            "https://t.example/{trace}",
            "javascript:alert({trace_id})",
            "https:///{trace_id}",
            "https://t.example/ {trace_id}",
        ] {
            assert_eq!(TraceLink::new(bad.to_owned()), Err(bad.to_owned()));
        }
    }
}
