"""A loopback server between a client and its object store, which does to it what networks do."""

import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

Fault = Callable[["Proxied"], bool]


class Proxied(BaseHTTPRequestHandler):
    """Passes a request on, unless the fault has dealt with it."""

    protocol_version = "HTTP/1.1"
    target: str
    fault: Fault
    connections: set["Proxied"]

    def setup(self) -> None:
        super().setup()
        self.body = b""
        self.connections.add(self)

    def finish(self) -> None:
        self.connections.discard(self)
        super().finish()

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.body = self.rfile.read(length)
        if len(self.body) < length:
            self.hang_up()  # who sent it died while it did
        elif not type(self).fault(self):
            self.answer(self.passed_on())

    do_GET = do_PUT = do_PATCH = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815  # the library's names

    def passed_on(self) -> httpx.Response:
        return httpx.request(
            self.command,
            self.target + self.path,
            headers=[(k, v) for k, v in self.headers.items() if k.lower() != "expect"],
            content=self.body,
            timeout=60,
        )

    def answer(self, response: httpx.Response, *, cut_after: int | None = None) -> None:
        self.send_response_only(response.status_code)
        for name, value in response.headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = response.headers.get("content-length", str(len(response.content)))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(response.content[:cut_after])
        if cut_after is not None:
            self.hang_up()

    def refuse(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>a fault</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def hang_up(self) -> None:
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  # the library's
        """Silent."""


class Once:
    """A fault that befalls the first request that fits, or the first few."""

    def __init__(
        self, fits: Fault, happens: Callable[["Proxied"], object], *, times: int = 1
    ) -> None:
        self.fits, self.happens, self.left = fits, happens, times
        self._lock = threading.Lock()

    def __call__(self, request: Proxied) -> bool:
        with self._lock:  # requests come side by side
            if self.left <= 0 or not self.fits(request):
                return False
            self.left -= 1
        self.happens(request)
        return True


def kill(victim: Future[int]) -> Callable[[Proxied], None]:
    """What befalls a request: its process, whose id is or will be known, dies and hears nothing."""

    def happens(request: Proxied) -> None:
        os.kill(victim.result(timeout=60), signal.SIGKILL)
        request.hang_up()

    return happens


def no_fault(request: Proxied) -> bool:
    return False


def refuse_chunked(request: Proxied) -> bool:
    if "chunked" not in request.headers.get("Transfer-Encoding", ""):
        return False
    request.refuse(411, "MissingContentLength")
    request.hang_up()
    return True


def self_signed(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for loopback that nobody trusts unasked, and a server's context with it."""
    certificate, key = folder / "ca.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out"]
    subprocess.run([*command.split(" "), *names, str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context


@contextmanager
def proxy(
    target: str,
    fault: Fault,
    *,
    tls: ssl.SSLContext | None = None,
    connections: set[Proxied] | None = None,
) -> Iterator[str]:
    """The URL of a server that passes on to `target`. `fault` says whether it has answered.

    `connections` holds those that are open, at any moment.
    """
    given = {
        "target": target,
        "fault": staticmethod(fault),
        "connections": set() if connections is None else connections,
    }
    handler = type("Handler", (Proxied,), given)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "https" if tls else "http"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
