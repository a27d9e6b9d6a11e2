"""Authentication: signed cards, bearer tokens, and the errors for a missing or wrong token."""

from a2a.client import A2AClientError, AuthInterceptor, InMemoryContextCredentialStore
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from clients import GRPC, JSONRPC, REST, card_of, events, message, send, state, within
from report import CARD_KEY, LOCKED_URL, TOKEN, raises


async def signed_card(clients):
    verify = create_signature_verifier(lambda kid, jku: CARD_KEY, ['ES256'])
    async with await clients.of('script', streaming=False, verify=verify) as client:
        assert state(await send(client, message('say hi'))) == 'TASK_STATE_COMPLETED'
    card = await card_of('script', verify)
    card.description += '!'
    try:
        verify(card)
    except InvalidSignaturesError:
        return
    raise AssertionError('a card that was changed verifies')


async def holder(token):
    """The credential service of the SDK, which reads the security schemes of the card."""
    store = InMemoryContextCredentialStore()
    await store.set_credentials('me', 'bearer', token)
    return [AuthInterceptor(store)]


ME = {'sessionId': 'me'}


async def bearer_token(clients):
    auth = await holder(TOKEN)
    for streaming in (False, True):
        client = await clients.of('echo', mesh=LOCKED_URL, auth=auth, streaming=streaming)
        async with client:
            assert await events(client, message('hello'), within(state=ME))


async def refused(clients, agent, auth, said):
    """A2A has no class for these errors: the general class of the SDK contains the error of the binding."""
    async with await clients.of(agent, mesh=LOCKED_URL, auth=auth, streaming=False) as client:
        error = await raises(A2AClientError, send(client, message('hello'), within(state=ME)))
        assert said[clients.binding] in str(error), error


async def unauthenticated(clients):
    said = {JSONRPC: 'HTTP Error 401', REST: 'HTTP Error 401', GRPC: 'UNAUTHENTICATED'}
    await refused(clients, 'echo', None, said)
    await refused(clients, 'echo', await holder('wrong'), said)


async def forbidden(clients):
    said = {JSONRPC: 'HTTP Error 403', REST: 'HTTP Error 403', GRPC: 'PERMISSION_DENIED'}
    await refused(clients, 'script', await holder(TOKEN), said)


CHECKS = {
    'signed card': signed_card,
    'bearer token': bearer_token,
    'unauthenticated': unauthenticated,
    'forbidden': forbidden,
}
