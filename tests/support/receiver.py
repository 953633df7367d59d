"""A receiver of webhooks on loopback, which verifies what it gets by the standard's own library."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook


@dataclass
class Receiver:
    url: str = ""
    answers: list[int] = field(default_factory=list)
    """What it answers next; 204 once that is used up."""
    headers: dict[str, str] = field(default_factory=dict)
    """What it adds to its answers."""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    """While it is not set, nothing is answered."""

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.got]

    def verified(self, secret: str) -> list[Any]:
        """The documents received; raises where a signature is not the secret's."""
        return [Webhook(secret).verify(body, headers) for headers, body in self.got]


@contextmanager
def receiving(*answers: int) -> Iterator[Receiver]:
    receiver = Receiver(answers=list(answers))
    receiver.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known = {name.lower(): value for name, value in self.headers.items()}
            receiver.got.append((known, body))
            receiver.open.wait()
            status = receiver.answers.pop(0) if receiver.answers else 204
            self.send_response(status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                return  # whoever sent it did not wait for the answer

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the library's
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield receiver
    finally:
        receiver.open.set()
        server.shutdown()
        server.server_close()
