"""Reports each check as one JSON line on stdout."""

import asyncio
import json
import os
import sys
import traceback

URL = os.environ['FAULTLINE_URL']
# A second mesh, which requires a token.
LOCKED_URL = os.environ['FAULTLINE_LOCKED_URL']
TOKEN = os.environ['FAULTLINE_TOKEN']
# The public key of the card signatures, in PEM.
CARD_KEY = os.environ['FAULTLINE_CARD_KEY']
# Time limit of one check, longer than any intended wait.
PATIENCE = 30


def agent_url(agent, mesh=URL):
    return f'{mesh}/agents/{agent}'


class Report:
    """The checks of one client on one binding."""

    failed = 0

    def __init__(self, client, binding):
        self.client = client
        self.binding = binding

    async def run(self, check, run):
        """Runs one check. A failure is reported with the check and does not stop the others."""
        line = {'client': self.client, 'binding': self.binding, 'check': check, 'ok': True}
        try:
            await asyncio.wait_for(run, PATIENCE)
        except Exception as error:
            Report.failed += 1
            line['ok'] = False
            line['why'] = f'{type(error).__name__}: {error}'
            traceback.print_exc()
        print(json.dumps(line), flush=True)


async def raises(kind, call):
    """Fails unless the call raises exactly this type of the client; returns the exception."""
    try:
        answer = await call
    except Exception as error:
        if type(error) is not kind:
            seen = type(error).__name__
            raise AssertionError(f'{seen} is no {kind.__name__}: {error}') from error
        return error
    raise AssertionError(f'no {kind.__name__} but an answer: {answer}')


def leave():
    """Exits with the result of the checks."""
    sys.exit(1 if Report.failed else 0)
