"""One JSON line a check on stdout, so that a run shows what each client really did."""

import asyncio
import json
import os
import sys
import traceback

URL = os.environ['FAULTLINE_URL']
# A second mesh, which asks who calls.
LOCKED_URL = os.environ['FAULTLINE_LOCKED_URL']
TOKEN = os.environ['FAULTLINE_TOKEN']
# What cards are signed with, the public half in PEM.
CARD_KEY = os.environ['FAULTLINE_CARD_KEY']
# Longer than any check waits on purpose; one that hangs has failed.
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
        """Runs one check. What goes wrong is told with the check and does not stop the others."""
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
    """The call must fail with exactly this type of the client's own; gives the exception."""
    try:
        answer = await call
    except Exception as error:
        if type(error) is not kind:
            seen = type(error).__name__
            raise AssertionError(f'{seen} is no {kind.__name__}: {error}') from error
        return error
    raise AssertionError(f'no {kind.__name__} but an answer: {answer}')


def leave():
    """Ends the process as the checks went."""
    sys.exit(1 if Report.failed else 0)
