"""A receiver of push notifications: an HTTP server on a free port that records requests."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Webhook:
    """Listens inside a `with` block. `received` is a list of (headers, body) in order of arrival."""

    def __enter__(self):
        received = self.received = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers['content-length']))
                received.append((self.headers, json.loads(body)))
                self.send_response(200)
                self.send_header('content-length', '0')
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f'http://127.0.0.1:{self._server.server_port}/hook'
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    async def until(self, is_last):
        """All requests up to the first one for which `is_last` is true."""
        while True:
            if any(is_last(body) for _, body in list(self.received)):
                return list(self.received)
            await asyncio.sleep(0.02)
