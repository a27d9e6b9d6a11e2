"""Clients of the official Python SDK, and the messages of the checks."""

import uuid

from importlib.metadata import version

import grpc
import httpx

from a2a.client import (
    A2ACardResolver,
    Client,
    ClientCallContext,
    ClientConfig,
    ClientFactory,
)
from a2a.types import a2a_pb2 as a2a

from report import URL, agent_url

SDK = f'a2a-sdk {version("a2a-sdk")}'
JSONRPC, REST, GRPC = 'JSONRPC', 'HTTP+JSON', 'GRPC'

FINAL = {
    a2a.TASK_STATE_COMPLETED,
    a2a.TASK_STATE_FAILED,
    a2a.TASK_STATE_CANCELED,
    a2a.TASK_STATE_REJECTED,
}


class Damage(httpx.AsyncHTTPTransport):
    """A transport that replaces the path, the body or a header of a request."""

    def __init__(self, path=None, body=None, headers=None):
        super().__init__()
        self._path, self._body, self._headers = path, body, headers or {}

    async def handle_async_request(self, request):
        headers = {**request.headers, **self._headers}
        headers.pop('content-length', None)
        url = request.url.copy_with(path=self._path) if self._path else request.url
        content = request.content if self._body is None else self._body
        damaged = httpx.Request(
            request.method, url, headers=headers, content=content, extensions=request.extensions
        )
        return await super().handle_async_request(damaged)


class OtherVersion(grpc.aio.UnaryUnaryClientInterceptor):
    """The same for gRPC: sets another version of A2A in the calls."""

    def __init__(self, announced):
        self._announced = announced

    async def intercept_unary_unary(self, continuation, details, request):
        kept = [(k, v) for k, v in details.metadata or () if k != 'a2a-version']
        metadata = grpc.aio.Metadata(*kept, ('a2a-version', self._announced))
        return await continuation(details._replace(metadata=metadata), request)


class Clients:
    """Clients of one binding, made from the agent card as in an application."""

    def __init__(self, binding):
        self.binding = binding

    async def of(
        self, agent, *, streaming=True, polling=False, claim=None, damage=None, announce=None,
        verify=None, push=None, mesh=URL, auth=None, patience=20,
    ) -> Client:
        """A client of an agent. `claim` changes the card, so that the server and not the SDK
        refuses a call; `announce` is another version of A2A; `patience` is the read timeout in
        seconds."""
        interceptors = [OtherVersion(announce)] if announce else []
        if announce:
            damage = Damage(headers={'a2a-version': announce})
        factory = ClientFactory(ClientConfig(
            streaming=streaming,
            polling=polling,
            httpx_client=httpx.AsyncClient(transport=damage, timeout=patience),
            grpc_channel_factory=lambda url: grpc.aio.insecure_channel(
                url, interceptors=interceptors
            ),
            supported_protocol_bindings=[self.binding],
            use_client_preference=True,
            push_notification_config=push,
        ))
        if claim is None and damage is None:
            return await factory.create_from_url(
                agent_url(agent, mesh), interceptors=auth, signature_verifier=verify
            )
        card = await card_of(agent)
        if claim:
            claim(card.capabilities)
        return factory.create(card)


async def card_of(agent, verify=None):
    async with httpx.AsyncClient() as http:
        resolver = A2ACardResolver(http, agent_url(agent))
        return await resolver.get_agent_card(signature_verifier=verify)


def message(text='', *, task='', context='', parts=None, **configuration):
    """A request with one text message, or with the given parts."""
    parts = [a2a.Part(text=text)] if parts is None else parts
    return a2a.SendMessageRequest(
        message=a2a.Message(
            message_id=str(uuid.uuid4()),
            role=a2a.ROLE_USER,
            parts=parts,
            task_id=task,
            context_id=context,
        ),
        configuration=a2a.SendMessageConfiguration(**configuration),
    )


async def events(client, request, context=None):
    return [event async for event in client.send_message(request, context=context)]


async def send(client, request, context=None) -> a2a.Task:
    """The task in the single event of a client without streaming."""
    (event,) = await events(client, request, context)
    assert event.HasField('task'), event
    return event.task


def within(seconds=None, state=None, **parameters):
    """The options of one call: its timeout and its service parameters."""
    return ClientCallContext(
        timeout=seconds, state=state or {}, service_parameters=parameters or None
    )


def texts(parts_of):
    return ''.join(part.text for part in parts_of.parts)


def state(holder):
    return a2a.TaskState.Name(holder.status.state)
