//! The link to where traces are shown: `trace_url` of the configuration, with a place for the id.

use http::Uri;

/// What stands for the id of a trace.
const PLACE: &str = "{trace_id}";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceLink(String);

impl TraceLink {
    /// The refused text is given back.
    pub(crate) fn new(template: String) -> Result<Self, String> {
        let made = template.replace(PLACE, "0").parse::<Uri>().ok();
        let web = made.filter(|url| matches!(url.scheme_str(), Some("http" | "https")));
        let is_link = template.contains(PLACE) && web.is_some_and(|url| url.host().is_some());
        if is_link { Ok(Self(template)) } else { Err(template) }
    }

    /// What is no id of a trace gets no link.
    pub(crate) fn to(&self, trace_id: &str) -> String {
        let is_id = trace_id.len() == 32 && trace_id.bytes().all(|b| b.is_ascii_hexdigit());
        if is_id { self.0.replace(PLACE, trace_id) } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_the_id_in_its_place() {
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
    fn what_is_no_link_is_refused() {
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
