//! Agent cards for both versions: the fields of 0.3 beside those of 1.0. Each client ignores the
//! other fields. A signature covers the fields of 1.0.

use faultline_proto::a2a::AgentInterface;
use serde_json::{Map, Value, json};

const VERSION: &str = "0.3";

/// The interfaces of 0.3. They are added to a card before it is signed, after those of 1.0, because
/// clients of 1.0 prefer the first interface.
pub(crate) fn interfaces(new: &[AgentInterface]) -> Vec<AgentInterface> {
    let served = |i: &&AgentInterface| matches!(&*i.protocol_binding, "JSONRPC" | "HTTP+JSON");
    let old = |i: &AgentInterface| AgentInterface {
        protocol_version: VERSION.to_owned(),
        // 0.3 has no tenants: URLs distinguish its interfaces.
        tenant: String::new(),
        ..i.clone()
    };
    new.iter().filter(served).map(old).collect()
}

/// Adds the fields of 0.3 to a card. A card without an interface for 0.3 stays unchanged.
pub(crate) fn card(new: Value) -> Value {
    let Value::Object(mut card) = new else { return new };
    let old: Vec<_> = list(card.get("supportedInterfaces"))
        .iter()
        .filter(|i| i["protocolVersion"] == VERSION)
        .map(|i| json!({"url": i["url"], "transport": i["protocolBinding"]}))
        .collect();
    let Some(main) = old.iter().find(|i| i["transport"] == "JSONRPC").or(old.first()) else {
        return Value::Object(card);
    };
    card.insert("url".to_owned(), main["url"].clone());
    card.insert("preferredTransport".to_owned(), main["transport"].clone());
    card.insert("protocolVersion".to_owned(), json!("0.3.0"));
    card.insert("additionalInterfaces".to_owned(), old.into());
    required(&mut card);
    if card["capabilities"]["extendedAgentCard"] == true {
        card.insert("supportsAuthenticatedExtendedCard".to_owned(), json!(true));
    }
    secured(&mut card);
    if let Some(Value::Object(schemes)) = card.get_mut("securitySchemes") {
        schemes.values_mut().for_each(scheme);
    }
    Value::Object(card)
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The fields that ProtoJSON omits when they are empty and that clients of 0.3 require.
fn required(card: &mut Map<String, Value>) {
    for text in ["name", "description", "version"] {
        card.entry(text).or_insert_with(|| json!(""));
    }
    card.entry("capabilities").or_insert_with(|| json!({}));
    for many in ["defaultInputModes", "defaultOutputModes", "skills"] {
        card.entry(many).or_insert_with(|| json!([]));
    }
    let Some(Value::Array(skills)) = card.get_mut("skills") else { return };
    for skill in skills.iter_mut().filter_map(Value::as_object_mut) {
        for text in ["id", "name", "description"] {
            skill.entry(text).or_insert_with(|| json!(""));
        }
        skill.entry("tags").or_insert_with(|| json!([]));
        secured(skill);
    }
}

/// `security` of a card or a skill: the requirements without their wrapper objects.
fn secured(of: &mut Map<String, Value>) {
    let requirement = |new: &Value| -> Option<Value> {
        let schemes = new.get("schemes")?.as_object()?;
        let scopes = |value: &Value| list(value.get("list")).to_vec();
        Some(schemes.iter().map(|(name, value)| (name.clone(), scopes(value))).collect())
    };
    let new = list(of.get("securityRequirements"));
    let old: Vec<Value> = new.iter().filter_map(requirement).collect();
    if !old.is_empty() {
        of.insert("security".to_owned(), old.into());
    }
}

/// A scheme of 0.3 is flat, with its type as a field: the flat fields go beside the wrapper of 1.0.
fn scheme(scheme: &mut Value) {
    const KINDS: [(&str, &str); 5] = [
        ("apiKeySecurityScheme", "apiKey"),
        ("httpAuthSecurityScheme", "http"),
        ("oauth2SecurityScheme", "oauth2"),
        ("openIdConnectSecurityScheme", "openIdConnect"),
        ("mtlsSecurityScheme", "mutualTLS"),
    ];
    let Value::Object(fields) = scheme else { return };
    let found = KINDS.iter().find_map(|(new, old)| Some((fields.get(*new)?.as_object()?, *old)));
    let Some((inner, kind)) = found else { return };
    let mut flat = inner.clone();
    if let Some(location) = flat.remove("location") {
        flat.insert("in".to_owned(), location);
    }
    if let Some(Value::Object(flows)) = flat.get_mut("flows") {
        for flow in flows.values_mut().filter_map(Value::as_object_mut) {
            flow.entry("scopes").or_insert_with(|| json!({}));
        }
    }
    fields.append(&mut flat);
    fields.insert("type".to_owned(), json!(kind));
}

#[cfg(test)]
mod tests {
    use faultline_proto::{a2a::AgentCard, json as proto_json};

    use super::*;

    fn interface(binding: &str, version: &str) -> AgentInterface {
        AgentInterface {
            url: format!("https://a.example/{binding}"),
            protocol_binding: binding.to_owned(),
            protocol_version: version.to_owned(),
            ..AgentInterface::default()
        }
    }

    #[test]
    fn card_has_the_fields_of_both_versions() {
        let new = ["GRPC", "HTTP+JSON", "JSONRPC"].map(|binding| interface(binding, "1.0"));
        let old = interfaces(&new);
        assert_eq!(old, ["HTTP+JSON", "JSONRPC"].map(|binding| interface(binding, "0.3")));
        let written = AgentCard {
            name: "echo".to_owned(),
            supported_interfaces: [&new[..], &old].concat(),
            ..AgentCard::default()
        };
        let new: Value = serde_json::from_slice(&proto_json::to_vec(&written)).unwrap();
        let card = card(new);
        assert_eq!(card["url"], "https://a.example/JSONRPC");
        assert_eq!(card["preferredTransport"], "JSONRPC");
        assert_eq!(card["protocolVersion"], "0.3.0");
        let rest = json!({"url": "https://a.example/HTTP+JSON", "transport": "HTTP+JSON"});
        assert_eq!(card["additionalInterfaces"][0], rest);
        for required in ["description", "version", "capabilities", "skills", "defaultInputModes"] {
            assert!(card.get(required).is_some(), "{required}");
        }
        assert_eq!(card.get("supportsAuthenticatedExtendedCard"), None);
        let read: AgentCard = proto_json::from_str(&card.to_string()).unwrap();
        assert_eq!(read.supported_interfaces, written.supported_interfaces);
        let of_1_0 = json!({"supportedInterfaces": [{"protocolVersion": "1.0", "url": "x"}]});
        assert_eq!(super::card(of_1_0.clone()), of_1_0);
    }

    #[test]
    fn security_is_written_for_both_versions() {
        let required = json!([{"schemes": {"bearer": {"list": ["read"]}, "key": {}}}]);
        let flow = json!({"tokenUrl": "https://t"});
        let card = card(json!({
            "supportedInterfaces": [
                {"url": "u", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"}],
            "capabilities": {"extendedAgentCard": true},
            "securityRequirements": required,
            "skills": [{"id": "s", "securityRequirements": required}],
            "securitySchemes": {
                "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}},
                "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
                "oauth": {"oauth2SecurityScheme": {"flows": {"clientCredentials": flow}}},
                "mtls": {"mtlsSecurityScheme": {}},
            },
        }));
        let old = json!([{"bearer": ["read"], "key": []}]);
        assert_eq!((&card["security"], &card["skills"][0]["security"]), (&old, &old));
        assert_eq!(card["supportsAuthenticatedExtendedCard"], true);
        let schemes = json!({
            "bearer": {"type": "http", "scheme": "bearer",
                       "httpAuthSecurityScheme": {"scheme": "bearer"}},
            "key": {"type": "apiKey", "in": "header", "name": "X-Key",
                    "apiKeySecurityScheme": {"location": "header", "name": "X-Key"}},
            "oauth": {"type": "oauth2",
                      "flows": {"clientCredentials": {"tokenUrl": "https://t", "scopes": {}}},
                      "oauth2SecurityScheme": {"flows": {"clientCredentials": flow}}},
            "mtls": {"type": "mutualTLS", "mtlsSecurityScheme": {}},
        });
        assert_eq!(card["securitySchemes"], schemes);
    }
}
