"""The agent framework AG2 with agents of the mesh as remote agents. No model is needed: AG2 uses the
remote agent instead."""

import asyncio
import sys

from importlib.metadata import version

from ag2 import Agent
from ag2.a2a import A2AConfig
from ag2.a2a.errors import (
    A2AExtensionNotSupportedError,
    A2ATaskFailedError,
    A2ATaskRejectedError,
)
from ag2.a2a.tasks import cancel_task, get_task, list_tasks

from a2a.types import TaskState
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError
from report import Report, agent_url, leave, raises

AG2 = f'ag2 {version("ag2")}'
# Names of the bindings in AG2 and in A2A.
BINDINGS = {'jsonrpc': 'JSONRPC', 'rest': 'HTTP+JSON', 'grpc': 'GRPC'}
NOBODY = '01a1e2ea-0000-7000-8000-000000000000'


def remote(binding, agent, **config):
    config = A2AConfig(card_url=agent_url(agent), prefer=binding, **config)
    return Agent(agent, config=config), config


async def send(binding):
    agent, _ = remote(binding, 'echo', streaming=False)
    assert (await agent.ask('hello')).body == 'hello'


async def stream(binding):
    agent, _ = remote(binding, 'script')
    reply = await agent.ask('say thinking; chunk "one "; sleep 100ms; chunk two')
    assert reply.body == 'one two', reply.body


async def bare_message(binding):
    agent, _ = remote(binding, 'script')
    assert (await agent.ask('message hi')).body == 'hi'


async def input_required(binding):
    asked = []

    def human(event):
        asked.append(event.content)
        return 'green'

    agent, _ = remote(binding, 'script')
    script = 'ask "which colour?"; artifact choice "got $answer"'
    reply = await agent.ask(script, hitl_hook=human)
    assert asked == ['which colour?'], asked
    assert reply.body == 'got green', reply.body


async def failed_task(binding):
    agent, _ = remote(binding, 'script')
    error = await raises(A2ATaskFailedError, agent.ask('fail RATE_LIMITED text="slow down"'))
    assert error.task.status.state == TaskState.TASK_STATE_FAILED, error.task
    await raises(A2ATaskRejectedError, agent.ask('reject "not today"'))


async def latest(binding, script):
    """AG2 does not expose the ids of tasks: the newest task is that of the last call."""
    agent, config = remote(binding, 'script')
    await agent.ask(script)
    return config, await list_tasks(config, page_size=1)


async def list_one(binding):
    _, listed = await latest(binding, 'artifact a b')
    assert len(listed.tasks) == 1 and listed.total_size >= 1, listed
    assert listed.tasks[0].status.state == TaskState.TASK_STATE_COMPLETED, listed


async def get(binding):
    config, listed = await latest(binding, 'artifact a b')
    found = await get_task(config, listed.tasks[0].id)
    assert found.artifacts[0].parts[0].text == 'b', found


async def task_not_found(binding):
    _, config = remote(binding, 'script')
    await raises(TaskNotFoundError, get_task(config, NOBODY))


async def task_not_cancelable(binding):
    config, listed = await latest(binding, 'artifact a b')
    await raises(TaskNotCancelableError, cancel_task(config, listed.tasks[0].id))


async def required_extension(binding):
    """AG2 reads the card: it refuses a required extension, or sends it and is served."""
    agent, _ = remote(binding, 'strict')
    await raises(A2AExtensionNotSupportedError, agent.ask('hello'))
    agent, _ = remote(binding, 'strict', extensions=['https://example.org/ext/strict/v1'])
    assert (await agent.ask('hello')).body == 'hello'


CHECKS = {
    'send': send,
    'stream': stream,
    'bare message': bare_message,
    'input required': input_required,
    'failed task': failed_task,
    'get': get,
    'list': list_one,
    'required extension': required_extension,
    'TaskNotFound': task_not_found,
    'TaskNotCancelable': task_not_cancelable,
}


async def main():
    for binding in sys.argv[1:] or BINDINGS:
        report = Report(AG2, BINDINGS[binding])
        for name, check in CHECKS.items():
            await report.run(name, check(binding))


asyncio.run(main())
leave()
