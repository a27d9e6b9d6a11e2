//! Pins the wire surface of A2A: names, numbers, types and behaviour of every field, and the
//! methods. `a2a_surface.txt` was written from the protocol's own tables, not from this contract.

#![allow(clippy::unwrap_used)]

use faultline_proto::DESCRIPTOR_SET;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind};

const PACKAGE: &str = "lf.a2a.v1";

fn pool() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTOR_SET).unwrap()
}

#[test]
fn every_field_and_enum_value_matches_the_protocol() {
    let pool = pool();
    let behavior = pool.get_extension_by_name("google.api.field_behavior").unwrap();
    let mut lines = Vec::new();
    for message in pool.all_messages().filter(|message| message.package_name() == PACKAGE) {
        for field in message.fields().filter(|_| !message.is_map_entry()) {
            let name = format!("{}.{}", message.name(), field.name());
            let number = field.number();
            let mut line = format!("{name}={number}:{} {}", type_of(&field), field.json_name());
            let options = field.options();
            let behaviors = options.get_extension(&behavior);
            if behaviors.as_list().unwrap().iter().any(|value| value.as_enum_number() == Some(2)) {
                line += " required";
            }
            match field.containing_oneof() {
                Some(group) if group.is_synthetic() => line += " optional",
                Some(group) => line += &format!(" oneof:{}", group.name()),
                None => {}
            }
            if field.field_descriptor_proto().options.as_ref().is_some_and(|o| o.deprecated()) {
                line += " deprecated";
            }
            lines.push(line);
        }
    }
    for desc in pool.all_enums().filter(|desc| desc.package_name() == PACKAGE) {
        for value in desc.values() {
            lines.push(format!("{}.{}={}", desc.name(), value.name(), value.number()));
        }
    }
    lines.sort();
    let mut golden: Vec<_> = include_str!("a2a_surface.txt").lines().collect();
    golden.sort_unstable();
    assert_eq!(lines.len(), golden.len());
    for (line, golden) in lines.iter().zip(golden) {
        assert_eq!(line, golden);
    }
}

fn type_of(field: &FieldDescriptor) -> String {
    let kind = field.kind();
    if field.is_map() {
        let entry = kind.as_message().unwrap();
        let key = entry.map_entry_key_field();
        let value = entry.map_entry_value_field();
        return format!("map<{},{}>", name_of(&key.kind()), name_of(&value.kind()));
    }
    if field.is_list() { format!("repeated-{}", name_of(&kind)) } else { name_of(&kind) }
}

fn name_of(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.name().to_owned(),
        Kind::Enum(desc) => desc.name().to_owned(),
        scalar => format!("{scalar:?}"),
    }
}

#[test]
fn service_has_the_eleven_methods_of_the_protocol() {
    const METHODS: &str = "
        SendMessage(SendMessageRequest) SendMessageResponse
        SendStreamingMessage(SendMessageRequest) stream StreamResponse
        GetTask(GetTaskRequest) Task
        ListTasks(ListTasksRequest) ListTasksResponse
        CancelTask(CancelTaskRequest) Task
        SubscribeToTask(SubscribeToTaskRequest) stream StreamResponse
        CreateTaskPushNotificationConfig(TaskPushNotificationConfig) TaskPushNotificationConfig
        GetTaskPushNotificationConfig(GetTaskPushNotificationConfigRequest) \
        TaskPushNotificationConfig
        ListTaskPushNotificationConfigs(ListTaskPushNotificationConfigsRequest) \
        ListTaskPushNotificationConfigsResponse
        GetExtendedAgentCard(GetExtendedAgentCardRequest) AgentCard
        DeleteTaskPushNotificationConfig(DeleteTaskPushNotificationConfigRequest) Empty";
    let service = pool().get_service_by_name("lf.a2a.v1.A2AService").unwrap();
    let methods: Vec<_> = service
        .methods()
        .map(|method| {
            assert!(!method.is_client_streaming());
            let stream = if method.is_server_streaming() { "stream " } else { "" };
            let input = method.input();
            let output = method.output();
            format!("{}({}) {stream}{}", method.name(), input.name(), output.name())
        })
        .collect();
    assert_eq!(methods.len(), 11);
    assert_eq!(methods, METHODS.trim().lines().map(str::trim).collect::<Vec<_>>());
}
