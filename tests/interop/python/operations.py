"""The operations of the official Python SDK, on every binding."""

import asyncio
import uuid

from datetime import UTC, datetime, timedelta

from a2a.types import a2a_pb2 as a2a

from clients import FINAL, card_of, events, message, send, state, texts, within
from webhook import Webhook


async def card(clients):
    found = await card_of('echo')
    assert found.name == 'echo', found
    listed = {i.protocol_binding for i in found.supported_interfaces if i.protocol_version == '1.0'}
    assert clients.binding in listed, found.supported_interfaces
    assert found.capabilities.streaming and found.capabilities.push_notifications, found
    assert found.skills and found.default_input_modes and found.default_output_modes, found


async def extended_card(clients):
    async with await clients.of('script') as client:
        public = {skill.id for skill in (await card_of('script')).skills}
        extended = await client.get_extended_agent_card(a2a.GetExtendedAgentCardRequest())
        assert public < {skill.id for skill in extended.skills}, extended.skills


async def send_and_wait(clients):
    async with await clients.of('echo', streaming=False) as client:
        task = await send(client, message('hello'))
        assert state(task) == 'TASK_STATE_COMPLETED', task
        assert [texts(artifact) for artifact in task.artifacts] == ['hello'], task
        assert texts(task.history[0]) == 'hello', task
        short = await send(client, message('again', context=task.context_id, history_length=0))
        assert short.context_id == task.context_id and short.id != task.id
        assert not short.history, short


async def bare_message(clients):
    async with await clients.of('script', streaming=False) as client:
        (event,) = await events(client, message('message hi'))
        assert event.HasField('message') and texts(event.message) == 'hi', event
    async with await clients.of('script') as client:
        (event,) = await events(client, message('message hi'))
        assert event.HasField('message') and texts(event.message) == 'hi', event


async def return_immediately(clients):
    async with await clients.of('script', streaming=False, polling=True) as client:
        task = await send(client, message('sleep 300ms; artifact done yes'))
        assert task.status.state not in FINAL, task
        while task.status.state not in FINAL:
            await asyncio.sleep(0.05)
            task = await client.get_task(a2a.GetTaskRequest(id=task.id))
        assert state(task) == 'TASK_STATE_COMPLETED' and texts(task.artifacts[0]) == 'yes', task


async def stream(clients):
    async with await clients.of('script') as client:
        text = 'say thinking; chunk "one "; sleep 100ms; chunk two'
        seen = await events(client, message(text))
    assert seen[0].HasField('task'), seen[0]
    ids = {seen[0].task.id}
    said, written = [], ''
    for event in seen[1:]:
        if event.HasField('status_update'):
            ids.add(event.status_update.task_id)
            said.append(texts(event.status_update.status.message))
        else:
            update = event.artifact_update
            ids.add(update.task_id)
            written = written * update.append + texts(update.artifact)
    assert len(ids) == 1, ids
    assert 'thinking' in said, seen
    assert written == 'one two', seen
    assert state(seen[-1].status_update) == 'TASK_STATE_COMPLETED', seen[-1]
    finals = [e for e in seen[1:] if e.status_update.status.state in FINAL]
    assert len(finals) == 1, seen


async def quiet_stream(clients):
    """A stream that is silent for longer than the default read timeout of the HTTP client, 5 s."""
    async with await clients.of('script', patience=5) as client:
        seen = await events(client, message('chunk one; sleep 6s; chunk two'))
    assert state(seen[-1].status_update) == 'TASK_STATE_COMPLETED', seen


async def failed_task(clients):
    """A task that ran and failed is an answer, not an exception."""
    async with await clients.of('script', streaming=False) as client:
        task = await send(client, message('fail RATE_LIMITED code=CARD_17 text="slow down"'))
        assert state(task) == 'TASK_STATE_FAILED', task
        failure = task.metadata['faultline.dev/failure']
        assert failure['reason'] == 'RATE_LIMITED', failure


async def get(clients):
    async with await clients.of('script', streaming=False) as client:
        sent = await send(client, message('say one; say two; artifact a b'))
        task = await client.get_task(a2a.GetTaskRequest(id=sent.id))
        assert (task.id, task.context_id) == (sent.id, sent.context_id)
        assert task.artifacts == sent.artifacts and task.status == sent.status, task
        short = await client.get_task(a2a.GetTaskRequest(id=sent.id, history_length=1))
        assert len(short.history) == 1, short
        none = await client.get_task(a2a.GetTaskRequest(id=sent.id, history_length=0))
        assert not none.history, none


async def list_tasks(clients):
    async with await clients.of('script', streaming=False) as client:
        context, before = str(uuid.uuid4()), datetime.now(UTC) - timedelta(seconds=2)
        done = [
            (await send(client, message('artifact a b', context=context))).id for _ in range(3)
        ]
        failed = (await send(client, message('fail UNAVAILABLE', context=context))).id

        first = await client.list_tasks(a2a.ListTasksRequest(context_id=context, page_size=3))
        assert (first.total_size, first.page_size, len(first.tasks)) == (4, 3, 3), first
        assert all(not task.artifacts for task in first.tasks), first
        rest = await client.list_tasks(a2a.ListTasksRequest(
            context_id=context, page_size=3, page_token=first.next_page_token
        ))
        assert rest.next_page_token == '', rest
        listed = [task.id for task in [*first.tasks, *rest.tasks]]
        assert listed == [failed, *reversed(done)], (listed, failed, done)

        only = await client.list_tasks(a2a.ListTasksRequest(
            context_id=context, status=a2a.TASK_STATE_COMPLETED, include_artifacts=True,
        ))
        assert {task.id for task in only.tasks} == set(done), only
        assert all(texts(task.artifacts[0]) == 'b' for task in only.tasks), only

        since = a2a.ListTasksRequest(context_id=context)
        since.status_timestamp_after.FromDatetime(before)
        assert (await client.list_tasks(since)).total_size == 4
        since.status_timestamp_after.FromDatetime(before + timedelta(days=1))
        assert (await client.list_tasks(since)).total_size == 0


async def cancel(clients):
    async with await clients.of('script', streaming=False, polling=True) as client:
        task = await send(client, message('sleep 1m'))
        ended = await client.cancel_task(a2a.CancelTaskRequest(id=task.id))
        assert state(ended) == 'TASK_STATE_CANCELED', ended
        task = await client.get_task(a2a.GetTaskRequest(id=task.id))
        assert state(task) == 'TASK_STATE_CANCELED', task


async def subscribe(clients):
    async with await clients.of('script', streaming=False, polling=True) as starter:
        task = await send(starter, message('ask "go?"; chunk one; sleep 50ms; chunk two'))

    async def follow():
        async with await clients.of('script') as client:
            request = a2a.SubscribeToTaskRequest(id=task.id)
            return [event async for event in client.subscribe(request)]

    followers = [asyncio.create_task(follow()) for _ in range(2)]
    async with await clients.of('script', streaming=False) as client:
        while state(task) != 'TASK_STATE_INPUT_REQUIRED':
            task = await client.get_task(a2a.GetTaskRequest(id=task.id))
        await asyncio.sleep(0.3)
        await send(client, message('go', task=task.id))
    one, other = [await follower for follower in followers]
    assert one[0].HasField('task') and one[0].task.id == task.id, one[0]
    assert one[-1] == other[-1] and one[-3:] == other[-3:], (one, other)
    assert state(one[-1].status_update) == 'TASK_STATE_COMPLETED', one[-1]
    written = ''.join(texts(e.artifact_update.artifact) for e in one)
    assert written == 'onetwo', one


async def continuation(clients):
    async with await clients.of('script', streaming=False) as client:
        asked = await send(client, message('ask "which colour?"; artifact choice "got $answer"'))
        assert state(asked) == 'TASK_STATE_INPUT_REQUIRED', asked
        assert texts(asked.status.message) == 'which colour?', asked
        done = await send(client, message('green', task=asked.id, context=asked.context_id))
        assert done.id == asked.id and state(done) == 'TASK_STATE_COMPLETED', done
        assert texts(done.artifacts[0]) == 'got green', done
    async with await clients.of('script') as client:
        seen = await events(client, message('ask "which?"; artifact choice "got $answer"'))
        assert state(seen[-1].status_update) == 'TASK_STATE_INPUT_REQUIRED', seen[-1]
        seen = await events(client, message('red', task=seen[0].task.id))
        assert state(seen[-1].status_update) == 'TASK_STATE_COMPLETED', seen[-1]


def is_completed(body):
    status = body.get('statusUpdate', {}).get('status', {})
    return status.get('state') == 'TASK_STATE_COMPLETED'


async def push(clients):
    """A webhook from the message and another from a call: both get all events in order."""
    with Webhook() as inline, Webhook() as added:
        config = a2a.TaskPushNotificationConfig(
            url=inline.url,
            token='a-token',
            authentication=a2a.AuthenticationInfo(scheme='Bearer', credentials='secret'),
        )
        async with await clients.of('script', streaming=False, polling=True, push=config) as client:
            task = await send(client, message('ask "go?"; say working; artifact a b'))
            made = await client.create_task_push_notification_config(
                a2a.TaskPushNotificationConfig(task_id=task.id, url=added.url)
            )
            assert made.id and made.task_id == task.id and made.url == added.url, made
            while state(task) != 'TASK_STATE_INPUT_REQUIRED':
                task = await client.get_task(a2a.GetTaskRequest(id=task.id))
            await send(client, message('go', task=task.id))
        received = await inline.until(is_completed)
        await added.until(is_completed)
    for headers, body in received:
        assert headers['x-a2a-notification-token'] == 'a-token', headers
        assert headers['authorization'] == 'Bearer secret', headers
        assert headers['content-type'].startswith('application/a2a+json'), headers
        assert body['statusUpdate']['taskId'] == task.id, body
    states = [body['statusUpdate']['status']['state'] for _, body in received]
    assert states.index('TASK_STATE_INPUT_REQUIRED') < states.index('TASK_STATE_COMPLETED'), states


async def push_configs(clients):
    async with await clients.of('script', streaming=False, polling=True) as client:
        task = await send(client, message('sleep 1m'))
        made = [
            await client.create_task_push_notification_config(a2a.TaskPushNotificationConfig(
                task_id=task.id, id=name, url='http://127.0.0.1:9/hook'
            ))
            for name in ('one', 'two')
        ]
        assert [config.id for config in made] == ['one', 'two'], made
        by_id = a2a.GetTaskPushNotificationConfigRequest(task_id=task.id, id='one')
        assert (await client.get_task_push_notification_config(by_id)).url == made[0].url
        all_of = a2a.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        listed = await client.list_task_push_notification_configs(all_of)
        assert {config.id for config in listed.configs} == {'one', 'two'}, listed
        gone = a2a.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id='one')
        await client.delete_task_push_notification_config(gone)
        await client.delete_task_push_notification_config(gone)
        listed = await client.list_task_push_notification_configs(all_of)
        assert [config.id for config in listed.configs] == ['two'], listed
        await client.cancel_task(a2a.CancelTaskRequest(id=task.id))


async def extension(clients):
    async with await clients.of('strict', streaming=False) as client:
        with_it = within(**{'A2A-Extensions': 'https://example.org/ext/strict/v1'})
        task = await send(client, message('hello'), with_it)
        assert state(task) == 'TASK_STATE_COMPLETED', task


CHECKS = {
    'card': card,
    'extended card': extended_card,
    'send': send_and_wait,
    'bare message': bare_message,
    'return immediately': return_immediately,
    'stream': stream,
    'quiet stream': quiet_stream,
    'failed task': failed_task,
    'get': get,
    'list': list_tasks,
    'cancel': cancel,
    'subscribe': subscribe,
    'input required': continuation,
    'push': push,
    'push configs': push_configs,
    'required extension': extension,
}
