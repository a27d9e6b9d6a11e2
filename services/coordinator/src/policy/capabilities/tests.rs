//! Tests of each capability that a card can offer.

use faultline_proto::{
    Failure,
    a2a::{
        AgentSkill, Message, SendMessageConfiguration, TaskPushNotificationConfig, part::Content,
    },
};

use super::*;

fn offer(capabilities: AgentCapabilities) -> AgentOffer {
    let card = AgentCard { capabilities: Some(capabilities), ..AgentCard::default() };
    AgentOffer { name: "a".into(), card: Some(card), ..AgentOffer::default() }
}

fn with_extensions(extensions: &[(&str, bool)]) -> AgentOffer {
    let extension = |(uri, required): &(&str, bool)| AgentExtension {
        uri: (*uri).into(),
        required: *required,
        ..AgentExtension::default()
    };
    let extensions = extensions.iter().map(extension).collect();
    offer(AgentCapabilities { extensions, ..AgentCapabilities::default() })
}

fn with_modes(default: &[&str], of_skill: &[&str]) -> AgentOffer {
    let owned = |modes: &[&str]| modes.iter().map(|m| (*m).to_owned()).collect();
    let skill = AgentSkill { input_modes: owned(of_skill), ..AgentSkill::default() };
    let card = AgentCard {
        default_input_modes: owned(default),
        skills: vec![skill],
        ..AgentCard::default()
    };
    AgentOffer { name: "a".into(), card: Some(card), ..AgentOffer::default() }
}

fn parts(media_types: &[&str]) -> SendMessageRequest {
    let part = |media_type: &&str| Part {
        content: Some(Content::Text("x".into())),
        media_type: (*media_type).into(),
        ..Part::default()
    };
    let parts = media_types.iter().map(part).collect();
    let message = Message { parts, ..Message::default() };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

fn reason<T: std::fmt::Debug>(refused: Result<T, Error>) -> String {
    Failure::from(refused.unwrap_err()).reason.clone()
}

#[test]
fn capability_must_be_true_to_count() {
    for (said, open) in [(None, false), (Some(false), false), (Some(true), true)] {
        let offer = offer(AgentCapabilities {
            streaming: said,
            push_notifications: said,
            ..AgentCapabilities::default()
        });
        assert_eq!(check_streaming(&offer).is_ok(), open, "{said:?}");
        assert_eq!(check_push(&offer).is_ok(), open, "{said:?}");
    }
    let silent = AgentOffer::default();
    assert_eq!(reason(check_streaming(&silent)), "UNSUPPORTED_OPERATION");
    assert_eq!(reason(check_push(&silent)), "PUSH_NOTIFICATION_NOT_SUPPORTED");
}

#[test]
fn inline_push_config_needs_the_push_capability() {
    let configuration = SendMessageConfiguration {
        task_push_notification_config: Some(TaskPushNotificationConfig::default()),
        ..SendMessageConfiguration::default()
    };
    let request = SendMessageRequest { configuration: Some(configuration), ..parts(&[]) };
    let silent = offer(AgentCapabilities::default());
    assert_eq!(reason(check_send(&silent, &request, &[])), "PUSH_NOTIFICATION_NOT_SUPPORTED");
    let push = AgentCapabilities { push_notifications: Some(true), ..Default::default() };
    assert!(check_send(&offer(push), &request, &[]).is_ok());
}

#[test]
fn missing_required_extension_is_named() {
    let offer = with_extensions(&[("urn:a", false), ("urn:b", true)]);
    let refused = check_send(&offer, &parts(&[]), &["urn:a".into()]);
    let failure = Failure::from(refused.unwrap_err());
    assert_eq!(failure.reason, "EXTENSION_SUPPORT_REQUIRED");
    assert!(failure.public_message.contains("urn:b"), "{}", failure.public_message);
    assert!(check_send(&offer, &parts(&[]), &["urn:b".into()]).is_ok());
}

#[test]
fn only_extensions_of_both_sides_are_in_force() {
    let offer = with_extensions(&[("urn:a", false), ("urn:b", true), ("urn:c", false)]);
    let declared = ["urn:x", "urn:c", "urn:b", "urn:b"].map(str::to_owned);
    assert_eq!(common_extensions(&offer, &declared), ["urn:b", "urn:c"]);
}

#[test]
fn media_types_are_matched_by_the_card() {
    let text = with_modes(&["text/plain"], &["Image/*"]);
    for taken in ["text/plain", "TEXT/Plain; charset=utf-8", "image/png", ""] {
        assert!(check_send(&text, &parts(&[taken]), &[]).is_ok(), "{taken}");
    }
    for refused in ["text/html", "audio/wav", "text", "text/"] {
        let refused = check_send(&text, &parts(&[refused]), &[]);
        assert_eq!(reason(refused), "CONTENT_TYPE_NOT_SUPPORTED");
    }
    assert!(check_send(&with_modes(&[], &[]), &parts(&["a/b"]), &[]).is_ok(), "none listed");
    assert!(check_send(&with_modes(&[], &["*/*"]), &parts(&["a/b"]), &[]).is_ok());
    assert!(check_send(&AgentOffer::default(), &parts(&["a/b"]), &[]).is_ok(), "no card");
}

#[test]
fn rejected_part_is_named() {
    let text = with_modes(&["text/plain"], &[]);
    let refused = check_send(&text, &parts(&["text/plain", "", "image/png"]), &[]);
    let failure = Failure::from(refused.unwrap_err());
    assert_eq!(failure.violations[0].field, "message.parts[2].mediaType");
    assert!(failure.public_message.contains("image/png"), "{}", failure.public_message);
}

#[test]
fn extended_card_needs_capability_and_content() {
    let promised =
        |promised| offer(AgentCapabilities { extended_agent_card: promised, ..Default::default() });
    let card = AgentCard { name: "more".into(), ..AgentCard::default() };
    let with_card = |offer| AgentOffer { extended_card: Some(card.clone()), ..offer };
    assert_eq!(reason(extended_card(&with_card(promised(None)))), "UNSUPPORTED_OPERATION");
    assert_eq!(reason(extended_card(&with_card(promised(Some(false))))), "UNSUPPORTED_OPERATION");
    assert_eq!(reason(extended_card(&promised(Some(true)))), "EXTENDED_AGENT_CARD_NOT_CONFIGURED");
    assert_eq!(extended_card(&with_card(promised(Some(true)))).unwrap().name, "more");
}
