"""A real child process that serves nothing but its own name, for tests of those who start it.

A model directory without `config.json` makes it fail; one with a file `slow` never gets healthy.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMAND = (sys.executable, __file__)


def main(directory: Path, served_name: str, address_file: Path) -> None:
    if not (directory / "config.json").exists():
        sys.exit("no config.json here")
    slow = (directory / "slow").exists()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if slow else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "ok", "model": served_name}).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    aside = address_file.with_suffix(".new")
    aside.write_text(f"http://127.0.0.1:{server.server_port}")
    aside.rename(address_file)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3], Path(sys.argv[5]))
