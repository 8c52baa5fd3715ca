"""A trainer that is killed while it sends: prints what it tells its engine, a JSON line each."""

import json
import os
import signal
import sys
import threading
from concurrent.futures import Future

import torch

from verl_core.weights.broadcast import BroadcastSender


class Dying:
    def named_weights(self):
        yield "a", torch.ones(1000)
        os.kill(os.getpid(), signal.SIGKILL)


def tell(method, **message):
    answer: Future = Future()
    print(json.dumps(message), flush=True)
    if method == "weights_open":
        threading.Thread(target=lambda: sys.stdin.readline() and answer.set_result({})).start()
    return answer


BroadcastSender([tell], device="cpu", bucket_bytes=1024, timeout_s=30).send(Dying(), 1)  # type: ignore[arg-type]
