"""Judges on this machine: one that answers as a script says, faults included."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Does what the script's next step says."""

    protocol_version = "HTTP/1.1"
    server: Server
    request_body: dict[str, Any]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.request_body = body
        judge = self.server.judge
        with judge.lock:
            judge.requests.append({"path": self.path, "body": body, "headers": dict(self.headers)})
            judge.times.append(time.monotonic())
            judge.now += 1
            judge.most = max(judge.most, judge.now)
            step = judge.steps.pop(0) if judge.steps else judge.otherwise
        try:
            step(self)
        finally:
            with judge.lock:
                judge.now -= 1

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    judge: Judge

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what some of these tests are about."""


@dataclass
class Judge:
    """A running server: its address, its script, and what it was asked."""

    otherwise: Step
    base_url: str = ""
    steps: list[Step] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    now: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)

    def prompt(self, index: int = -1) -> str:
        return "\n".join(message["content"] for message in self.requests[index]["body"]["messages"])


@contextlib.contextmanager
def running(otherwise: Step) -> Iterator[Judge]:
    server = Server(("127.0.0.1", 0), Handler)
    judge = Judge(otherwise, f"http://127.0.0.1:{server.server_address[1]}/v1")
    server.judge = judge
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        judge.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def chat(content: object, **usage: int) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": usage or {"prompt_tokens": 100, "completion_tokens": 20}}).encode()


def says(content: object) -> Step:
    """Answer with a text, or with data as JSON."""
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    return lambda handler: handler.send(200, chat(text))


def status(code: int, body: bytes = b"busy", **headers: str) -> Step:
    return lambda handler: handler.send(code, body, **headers)


def raw(body: bytes) -> Step:
    return lambda handler: handler.send(200, body)


def truncated(handler: Handler) -> None:
    """Promise more than is sent."""
    body = chat('{"explanation": "", "equivalent": true}')
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) + 50))
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True


def reset(handler: Handler) -> None:
    """Break the connection with a reset instead of an answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def hangs(handler: Handler) -> None:
    handler.server.judge.released.wait(20)


def drips(handler: Handler) -> None:
    """Send a byte now and then, so that no single read ever times out."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.judge.released.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()


def slow(seconds: float, step: Step) -> Step:
    def later(handler: Handler) -> None:
        handler.server.judge.released.wait(seconds)
        step(handler)

    return later
