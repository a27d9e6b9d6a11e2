"""The official Python SDK of A2A 0.3 against a mesh, on JSON-RPC and REST."""

import asyncio
import sys
import uuid

from importlib.metadata import version

import httpx

from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import (
    A2AClientHTTPError,
    A2AClientJSONRPCError,
    A2AClientTimeoutError,
)
from a2a.types import (
    FilePart,
    FileWithBytes,
    GetTaskPushNotificationConfigParams,
    Message,
    Part,
    PushNotificationAuthenticationInfo,
    PushNotificationConfig,
    Role,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
    TextPart,
)
from report import LOCKED_URL, TOKEN, URL, Report, agent_url, leave, raises
from webhook import Webhook

SDK = f'a2a-sdk {version("a2a-sdk")}'
JSONRPC, REST = 'JSONRPC', 'HTTP+JSON'
NOBODY = '01a1e2ea-0000-7000-8000-000000000000'


async def card_of(agent):
    async with httpx.AsyncClient() as http:
        return await A2ACardResolver(http, agent_url(agent)).get_agent_card()


class Clients:
    """Clients of one binding, made from the agent card as in an application."""

    def __init__(self, binding):
        self.binding = binding

    async def of(self, agent, mesh=URL, timeout=20, headers=None, **config):
        config = ClientConfig(
            httpx_client=httpx.AsyncClient(timeout=timeout, headers=headers),
            supported_transports=[self.binding],
            **config,
        )
        return await ClientFactory.connect(agent_url(agent, mesh), config)

    async def refused(self, number, status, call):
        """The exception of the SDK for the binding, which contains the error of the mesh."""
        if self.binding == JSONRPC:
            error = await raises(A2AClientJSONRPCError, call)
            assert error.error.code == number, error
        else:
            error = await raises(A2AClientHTTPError, call)
            assert error.status_code == status, error


def message(text='', *, task=None, context=None, parts=None):
    return Message(
        message_id=str(uuid.uuid4()),
        role=Role.user,
        parts=parts or [Part(root=TextPart(text=text))],
        task_id=task,
        context_id=context,
    )


async def events(client, request):
    return [event async for event in client.send_message(request)]


async def send(client, request):
    """The task after the last event."""
    return (await events(client, request))[-1][0]


def texts(holder):
    return ''.join(part.root.text for part in holder.parts)


async def card(clients):
    found = await card_of('echo')
    listed = {found.preferred_transport: found.url}
    listed |= {i.transport: i.url for i in found.additional_interfaces or []}
    assert clients.binding in listed, listed
    assert found.protocol_version.startswith('0.3'), found.protocol_version


async def extended_card(clients):
    async with await clients.of('script') as client:
        shown = {skill.id for skill in (await card_of('script')).skills}
        extended = await client.get_card()
        assert shown < {skill.id for skill in extended.skills}, extended.skills


async def send_and_wait(clients):
    async with await clients.of('echo', streaming=False) as client:
        task = await send(client, message('hello'))
        assert task.status.state == TaskState.completed, task
        assert [texts(artifact) for artifact in task.artifacts] == ['hello'], task


async def bare_message(clients):
    async with await clients.of('script', streaming=False) as client:
        (answer,) = await events(client, message('message hi'))
        assert isinstance(answer, Message) and texts(answer) == 'hi', answer


async def return_immediately(clients):
    async with await clients.of('script', streaming=False, polling=True) as client:
        task = await send(client, message('sleep 300ms; artifact done yes'))
        assert task.status.state in (TaskState.submitted, TaskState.working), task
        while task.status.state in (TaskState.submitted, TaskState.working):
            await asyncio.sleep(0.05)
            task = await client.get_task(TaskQueryParams(id=task.id))
        assert task.status.state == TaskState.completed, task


async def stream(clients):
    async with await clients.of('script') as client:
        text = 'say thinking; chunk "one "; sleep 100ms; chunk two'
        seen = await events(client, message(text))
    task, last = seen[-1]
    assert last.final and last.status.state == TaskState.completed, last
    assert [event.final for _, event in seen if event and event.kind == 'status-update'].count(
        True
    ) == 1, seen
    assert texts(task.artifacts[0]) == 'one two', task
    said = [event.status.message for _, event in seen if event and event.kind == 'status-update']
    assert any(text and texts(text) == 'thinking' for text in said), said


async def failed_task(clients):
    async with await clients.of('script', streaming=False) as client:
        task = await send(client, message('fail RATE_LIMITED text="slow down"'))
        assert task.status.state == TaskState.failed, task
        assert task.metadata['faultline.dev/failure']['reason'] == 'RATE_LIMITED', task


async def get(clients):
    async with await clients.of('script', streaming=False) as client:
        sent = await send(client, message('say one; artifact a b'))
        task = await client.get_task(TaskQueryParams(id=sent.id))
        assert (task.id, task.context_id) == (sent.id, sent.context_id)
        assert task.artifacts == sent.artifacts, task
        short = await client.get_task(TaskQueryParams(id=sent.id, history_length=1))
        assert len(short.history) == 1, short


async def cancel(clients):
    async with await clients.of('script', streaming=False, polling=True) as client:
        task = await send(client, message('sleep 1m'))
        ended = await client.cancel_task(TaskIdParams(id=task.id))
        assert ended.status.state == TaskState.canceled, ended


async def asking(client, script):
    task = await send(client, message(script))
    while task.status.state != TaskState.input_required:
        task = await client.get_task(TaskQueryParams(id=task.id))
    return task


async def subscribe(clients):
    async with await clients.of('script', polling=True, streaming=False) as starter:
        task = await asking(starter, 'ask "go?"; chunk one; sleep 50ms; chunk two')
        async with await clients.of('script') as client:
            seen = []
            async for event in client.resubscribe(TaskIdParams(id=task.id)):
                if not seen:
                    await send(starter, message('go', task=task.id))
                seen.append(event)
    task, last = seen[-1]
    assert last.final and task.status.state == TaskState.completed, last
    assert texts(task.artifacts[0]) == 'onetwo', task


async def input_required(clients):
    async with await clients.of('script', streaming=False) as client:
        asked = await send(client, message('ask "which?"; artifact choice "got $answer"'))
        assert asked.status.state == TaskState.input_required, asked
        assert texts(asked.status.message) == 'which?', asked
        done = await send(client, message('green', task=asked.id, context=asked.context_id))
        assert done.status.state == TaskState.completed, done
        assert texts(done.artifacts[0]) == 'got green', done


def is_completed(body):
    """Webhooks use the current version, also for clients of 0.3."""
    status = body.get('statusUpdate', {}).get('status', {})
    return status.get('state') == 'TASK_STATE_COMPLETED'


async def push(clients):
    with Webhook() as hook:
        config = PushNotificationConfig(
            url=hook.url,
            token='a-token',
            authentication=PushNotificationAuthenticationInfo(
                schemes=['Bearer'], credentials='secret'
            ),
        )
        settings = {'streaming': False, 'polling': True, 'push_notification_configs': [config]}
        async with await clients.of('script', **settings) as client:
            task = await asking(client, 'ask "go?"; artifact a b')
            await send(client, message('go', task=task.id))
        received = await hook.until(is_completed)
    for headers, _ in received:
        assert headers['x-a2a-notification-token'] == 'a-token', headers
        assert headers['authorization'] == 'Bearer secret', headers


async def push_configs(clients):
    async with await clients.of('script', streaming=False, polling=True) as client:
        task = await send(client, message('sleep 1m'))
        config = PushNotificationConfig(id='one', url='http://127.0.0.1:9/hook')
        made = await client.set_task_callback(
            TaskPushNotificationConfig(task_id=task.id, push_notification_config=config)
        )
        assert made.task_id == task.id, made
        assert made.push_notification_config.url == config.url, made
        found = await client.get_task_callback(
            GetTaskPushNotificationConfigParams(id=task.id, push_notification_config_id='one')
        )
        assert found.push_notification_config.id == 'one', found
        await client.cancel_task(TaskIdParams(id=task.id))


def bearing(token):
    return {'mesh': LOCKED_URL, 'headers': {'Authorization': f'Bearer {token}'}}


async def bearer_token(clients):
    async with await clients.of('echo', **bearing(TOKEN), streaming=False) as client:
        task = await send(client, message('hello'))
        assert task.status.state == TaskState.completed, task


async def unauthenticated(clients):
    async with await clients.of('echo', **bearing('wrong'), streaming=False) as client:
        error = await raises(A2AClientHTTPError, send(client, message('hello')))
        assert error.status_code == httpx.codes.UNAUTHORIZED, error


async def forbidden(clients):
    async with await clients.of('script', **bearing(TOKEN), streaming=False) as client:
        error = await raises(A2AClientHTTPError, send(client, message('hello')))
        assert error.status_code == httpx.codes.FORBIDDEN, error


async def task_not_found(clients):
    async with await clients.of('script', streaming=False) as client:
        await clients.refused(-32001, 404, client.get_task(TaskQueryParams(id=NOBODY)))
        await clients.refused(-32001, 404, client.cancel_task(TaskIdParams(id=NOBODY)))
        await clients.refused(-32001, 404, send(client, message('x', task=NOBODY)))


async def task_not_cancelable(clients):
    async with await clients.of('echo', streaming=False) as client:
        task = await send(client, message('hello'))
        await clients.refused(-32002, 400, client.cancel_task(TaskIdParams(id=task.id)))


async def unsupported_operation(clients):
    async with await clients.of('echo', streaming=False) as client:
        task = await send(client, message('hello'))
        await clients.refused(-32004, 400, send(client, message('x', task=task.id)))


async def push_not_supported(clients):
    async with await clients.of('plain', streaming=False) as client:
        task = await send(client, message('hello'))
        config = PushNotificationConfig(url='http://127.0.0.1:9/')
        of_task = TaskPushNotificationConfig(task_id=task.id, push_notification_config=config)
        await clients.refused(-32003, 400, client.set_task_callback(of_task))


async def content_type_not_supported(clients):
    picture = FilePart(file=FileWithBytes(bytes='iVBORw==', mime_type='image/png'))
    async with await clients.of('script', streaming=False) as client:
        sent = send(client, message(parts=[Part(root=picture)]))
        await clients.refused(-32005, 400, sent)


async def invalid_params(clients):
    async with await clients.of('script', streaming=False) as client:
        asked = await send(client, message('ask "go?"'))
        elsewhere = message('go', task=asked.id, context=str(uuid.uuid4()))
        await clients.refused(-32602, 400, send(client, elsewhere))
        await client.cancel_task(TaskIdParams(id=asked.id))


async def timeout(clients):
    async with await clients.of('script', timeout=0.5, streaming=False) as client:
        await raises(A2AClientTimeoutError, send(client, message('sleep 5s')))


CHECKS = {
    'card': card,
    'extended card': extended_card,
    'send': send_and_wait,
    'bare message': bare_message,
    'return immediately': return_immediately,
    'stream': stream,
    'failed task': failed_task,
    'get': get,
    'cancel': cancel,
    'subscribe': subscribe,
    'input required': input_required,
    'push': push,
    'push configs': push_configs,
    'bearer token': bearer_token,
    'unauthenticated': unauthenticated,
    'forbidden': forbidden,
    'TaskNotFound': task_not_found,
    'TaskNotCancelable': task_not_cancelable,
    'UnsupportedOperation': unsupported_operation,
    'PushNotificationNotSupported': push_not_supported,
    'ContentTypeNotSupported': content_type_not_supported,
    'InvalidParams': invalid_params,
    'timeout': timeout,
}


async def main():
    for binding in sys.argv[1:] or (JSONRPC, REST):
        report, clients = Report(SDK, binding), Clients(binding)
        for name, check in CHECKS.items():
            await report.run(name, check(clients))


asyncio.run(main())
leave()
