"""The official Python SDK against a mesh, on its three bindings: every operation, every error."""

import asyncio
import sys

import errors
import operations
import trust

from clients import GRPC, JSONRPC, REST, SDK, Clients
from report import Report, leave


async def main():
    for binding in sys.argv[1:] or (JSONRPC, REST, GRPC):
        report, clients = Report(SDK, binding), Clients(binding)
        checks = operations.CHECKS | trust.CHECKS | errors.CHECKS | errors.OF_BINDING[binding]
        for name, check in checks.items():
            await report.run(name, check(clients))


asyncio.run(main())
leave()
