"""An agent on the official Python SDK of A2A 0.3, on JSON-RPC or REST.

    server.py PORT TRANSPORT [--no-streams]

A message is the name of a behaviour below. Each cancel of a task prints a line.
"""

import asyncio
import sys

import uvicorn

from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, DataPart, Part, TextPart
from a2a.utils import new_agent_text_message, new_task


def text(words):
    return Part(root=TextPart(text=words))


class Agent(AgentExecutor):
    async def execute(self, context, events):
        said = context.get_user_input()
        if said == 'message':
            await events.enqueue_event(new_agent_text_message('only a message'))
            return
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            await events.enqueue_event(task)
        updater = TaskUpdater(events, task.id, task.context_id)
        asked = any(words(message) == 'ask' for message in task.history or [])
        if asked and said != 'ask':
            await updater.add_artifact([text(f'hello {said}')], artifact_id='output')
            await updater.complete()
        elif said == 'stream':
            await updater.start_work(updater.new_agent_message([text('on it')]))
            for place, chunk in enumerate(['a ', 'b ', 'c']):
                await updater.add_artifact(
                    [text(chunk)], artifact_id='output', append=place > 0, last_chunk=place == 2
                )
                await asyncio.sleep(0.05)
            data = Part(root=DataPart(data={'total': 7}))
            await updater.add_artifact([data], artifact_id='sum')
            await updater.complete(updater.new_agent_message([text('done')]))
        elif said == 'ask':
            question = updater.new_agent_message([text('Your name?')])
            await updater.requires_input(question, final=True)
        elif said == 'fail':
            await updater.failed(updater.new_agent_message([text('the books are closed')]))
        elif said == 'reject':
            await updater.reject(updater.new_agent_message([text('not my work')]))
        elif said == 'wait':
            await updater.add_artifact([text('here')], artifact_id='output')
            await asyncio.sleep(600)

    async def cancel(self, context, events):
        task = context.current_task
        await TaskUpdater(events, task.id, task.context_id).cancel()
        print('canceled', flush=True)


def words(message):
    return ''.join(getattr(part.root, 'text', '') for part in message.parts)


port, transport = int(sys.argv[1]), sys.argv[2]
skill = AgentSkill(id='old', name='old', description='Does what it is told', tags=['test'])
card = AgentCard(
    name='old',
    description='Speaks A2A 0.3',
    version='1.0.0',
    url=f'http://127.0.0.1:{port}',
    preferred_transport=transport,
    capabilities=AgentCapabilities(streaming='--no-streams' not in sys.argv),
    default_input_modes=['text/plain'],
    default_output_modes=['text/plain'],
    skills=[skill],
)
handler = DefaultRequestHandler(Agent(), InMemoryTaskStore())
server = A2ARESTFastAPIApplication if transport == 'HTTP+JSON' else A2AStarletteApplication
uvicorn.run(server(card, handler).build(), host='127.0.0.1', port=port, log_level='warning')
