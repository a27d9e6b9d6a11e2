"""Every error class of the official Python SDK that a server can cause."""

import uuid

import httpx

from a2a.client import A2AClientTimeoutError, AgentCardResolutionError
from a2a.types import a2a_pb2 as a2a
from a2a.utils import errors as sdk

from clients import GRPC, JSONRPC, REST, Damage, card_of, events, message, send, within
from report import raises

NOBODY = '01a1e2ea-0000-7000-8000-000000000000'


async def collect(stream):
    return [event async for event in stream]


async def task_not_found(clients):
    async with await clients.of('script') as client:
        await raises(sdk.TaskNotFoundError, client.get_task(a2a.GetTaskRequest(id=NOBODY)))
        await raises(sdk.TaskNotFoundError, client.cancel_task(a2a.CancelTaskRequest(id=NOBODY)))
        follow = client.subscribe(a2a.SubscribeToTaskRequest(id=NOBODY))
        await raises(sdk.TaskNotFoundError, collect(follow))
        await raises(sdk.TaskNotFoundError, events(client, message('x', task=NOBODY)))
        config = a2a.TaskPushNotificationConfig(task_id=NOBODY, url='http://127.0.0.1:9/')
        await raises(
            sdk.TaskNotFoundError, client.create_task_push_notification_config(config)
        )
        by_id = a2a.GetTaskPushNotificationConfigRequest(task_id=NOBODY, id='one')
        await raises(sdk.TaskNotFoundError, client.get_task_push_notification_config(by_id))


async def task_not_cancelable(clients):
    async with await clients.of('echo', streaming=False) as client:
        task = await send(client, message('hello'))
        call = client.cancel_task(a2a.CancelTaskRequest(id=task.id))
        await raises(sdk.TaskNotCancelableError, call)


async def unsupported_operation(clients):
    async with await clients.of('echo') as client:
        seen = await events(client, message('hello'))
        done = seen[0].task.id
        follow = client.subscribe(a2a.SubscribeToTaskRequest(id=done))
        await raises(sdk.UnsupportedOperationError, collect(follow))
        await raises(sdk.UnsupportedOperationError, events(client, message('x', task=done)))


async def unsupported_capability(clients):
    """Calls that the card does not offer."""

    def claim(capabilities):
        capabilities.streaming = True
        capabilities.extended_agent_card = True

    async with await clients.of('plain', claim=claim) as client:
        await raises(sdk.UnsupportedOperationError, events(client, message('hello')))
        call = client.get_extended_agent_card(a2a.GetExtendedAgentCardRequest())
        await raises(sdk.UnsupportedOperationError, call)


async def push_not_supported(clients):
    async with await clients.of('plain', streaming=False) as client:
        task = await send(client, message('hello'))
        config = a2a.TaskPushNotificationConfig(task_id=task.id, url='http://127.0.0.1:9/')
        kind = sdk.PushNotificationNotSupportedError
        await raises(kind, client.create_task_push_notification_config(config))
        all_of = a2a.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        await raises(kind, client.list_task_push_notification_configs(all_of))
        inline = a2a.TaskPushNotificationConfig(url='http://127.0.0.1:9/')
        sent = send(client, message('hello', task_push_notification_config=inline))
        await raises(kind, sent)


async def content_type_not_supported(clients):
    picture = a2a.Part(raw=b'\x89PNG', media_type='image/png')
    async with await clients.of('script', streaming=False) as client:
        sent = send(client, message(parts=[picture]))
        await raises(sdk.ContentTypeNotSupportedError, sent)


async def extended_card_not_configured(clients):
    async with await clients.of('promises') as client:
        call = client.get_extended_agent_card(a2a.GetExtendedAgentCardRequest())
        await raises(sdk.ExtendedAgentCardNotConfiguredError, call)


async def extension_required(clients):
    async with await clients.of('strict') as client:
        await raises(sdk.ExtensionSupportRequiredError, events(client, message('hello')))


async def version_not_supported(clients):
    async with await clients.of('echo', streaming=False, announce='2.0') as client:
        await raises(sdk.VersionNotSupportedError, send(client, message('hello')))
        call = client.get_task(a2a.GetTaskRequest(id=NOBODY))
        await raises(sdk.VersionNotSupportedError, call)


async def invalid_params(clients):
    async with await clients.of('script', streaming=False) as client:
        error = await raises(sdk.InvalidParamsError, send(client, message(parts=[])))
        assert 'parts' in str(error), error
        await raises(
            sdk.InvalidParamsError, client.list_tasks(a2a.ListTasksRequest(page_size=101))
        )
        call = client.list_tasks(a2a.ListTasksRequest(page_token='nonsense'))
        await raises(sdk.InvalidParamsError, call)
        asked = await send(client, message('ask "go?"'))
        other = message('go', task=asked.id, context=str(uuid.uuid4()))
        await raises(sdk.InvalidParamsError, send(client, other))
        call = client.get_task(a2a.GetTaskRequest(id=asked.id, history_length=-1))
        await raises(sdk.InvalidParamsError, call)
        await client.cancel_task(a2a.CancelTaskRequest(id=asked.id))


async def invalid_request(clients):
    """Requests that the SDK never sends: its transport is modified."""
    damage = Damage(body=b'{"jsonrpc":"2.0","id":1,"params":{}}')
    async with await clients.of('echo', streaming=False, damage=damage) as client:
        await raises(sdk.InvalidRequestError, send(client, message('hello')))


async def method_not_found(clients):
    damage = Damage(body=b'{"jsonrpc":"2.0","id":1,"method":"NoSuchMethod","params":{}}')
    async with await clients.of('echo', streaming=False, damage=damage) as client:
        await raises(sdk.MethodNotFoundError, send(client, message('hello')))


async def json_parse(clients):
    damage = Damage(body=b'{"jsonrpc":"2.0",')
    async with await clients.of('echo', streaming=False, damage=damage) as client:
        await raises(sdk.JSONParseError, send(client, message('hello')))


async def no_such_route(clients):
    """An unknown method of REST is a path that does not exist."""
    damage = Damage(path='/agents/echo/message:explode')
    async with await clients.of('echo', streaming=False, damage=damage) as client:
        await raises(sdk.MethodNotFoundError, send(client, message('hello')))


async def timeout(clients):
    """With a stream, because the deadline of a blocking gRPC send also ends its task, which fails first."""
    async with await clients.of('script') as client:
        call = events(client, message('say working; sleep 5s'), within(0.5))
        await raises(A2AClientTimeoutError, call)


async def no_such_agent(clients):
    error = await raises(AgentCardResolutionError, card_of('no-such-agent'))
    assert error.status_code == httpx.codes.NOT_FOUND, error


CHECKS = {
    'TaskNotFound': task_not_found,
    'TaskNotCancelable': task_not_cancelable,
    'UnsupportedOperation': unsupported_operation,
    'capability not offered': unsupported_capability,
    'PushNotificationNotSupported': push_not_supported,
    'ContentTypeNotSupported': content_type_not_supported,
    'ExtendedAgentCardNotConfigured': extended_card_not_configured,
    'ExtensionSupportRequired': extension_required,
    'VersionNotSupported': version_not_supported,
    'InvalidParams': invalid_params,
    'no such agent': no_such_agent,
    'timeout': timeout,
}

# Errors of a single binding.
OF_BINDING = {
    JSONRPC: {
        'InvalidRequest': invalid_request,
        'MethodNotFound': method_not_found,
        'JSONParse': json_parse,
    },
    REST: {'MethodNotFound': no_such_route},
    GRPC: {},
}
