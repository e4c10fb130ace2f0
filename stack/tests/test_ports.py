"""Waiting for a port that is to answer."""

import socket
import threading
import time

from gpuaas_stack import ports


def test_a_port_answers_when_somebody_listens_there() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not ports.answers("127.0.0.1", port, deadline=time.monotonic())
        # It is asked first, and listens only then.
        late = threading.Timer(0.2, server.listen)
        late.start()
        assert ports.answers("127.0.0.1", port, deadline=time.monotonic() + 60)
        late.join()
