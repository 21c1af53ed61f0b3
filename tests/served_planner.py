"""A planner that serves on a free port of this machine, in a thread; its workers are processes, as in earnest."""

from __future__ import annotations

import http.client
import json
import threading
import time

from parsim.ui.guard import Guard
from parsim.ui.serve import listening, server_of
from parsim.ui.server import application

TINY = {
    "model": {"base": "llama-3-8b", "layers": 2}, "cluster.nodes": 1, "training.sequence_length": 1024, "training.global_batch": 16,
    "parallel.tensor.size": 2, "parallel.pipeline.size": 1, "parallel.pipeline.schedule": None,
}  # fmt: skip
"""a state that is simulated within a tenth of a second"""


class Served:
    """A server and how to ask it."""

    def __init__(self):
        self.socket = listening(0)
        self.announced = []
        self.guard = Guard(self.socket.getsockname()[1], self.announced.append)
        app, self.planner = application(self.guard)
        self.server = server_of(app)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.host = f"127.0.0.1:{self.guard.port}"

    def headers(self, **changed):
        """Those of the page itself, None to leave one out."""
        plain = {"host": self.host, "origin": f"http://{self.host}", "x-parsim-token": self.guard.token, "content-type": "application/json"}
        return {
            name: value
            for name, value in (plain | {key.replace("_", "-"): value for key, value in changed.items()}).items()
            if value is not None
        }

    def ask(self, path, body=None, method="POST", headers=None):
        """Status, headers, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.guard.port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        for name, value in (self.headers() if headers is None else headers).items():
            connection.putheader(name, value)
        if method == "POST" and not any(name == "content-length" for name in headers or {}):
            connection.putheader("content-length", str(len(raw)))
        connection.endheaders(raw)
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        return reply.status, dict(reply.getheaders()), text

    def answer(self, path, **body):
        """The document."""
        status, _, text = self.ask(f"/api/{path}", body)
        assert status == 200, text
        return json.loads(text)

    def lines(self, path, **body):
        """All lines of a stream."""
        status, _, text = self.ask(f"/api/{path}", body)
        assert status == 200, text
        return [one for one in map(json.loads, text.splitlines()) if one["kind"] != "alive"]

    def end(self):
        self.server.should_exit = True
        self.thread.join(20)
        self.socket.close()
