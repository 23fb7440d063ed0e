"""Score pairs together that many people request one by one."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from queue import Empty, SimpleQueue

import numpy as np

from finetune.errors import ModelError
from finetune.inference.scorer import Row, ScoredPairs, Scorer

_GATHER = 0.002  # seconds to wait for a crowd's next requests
_MOST = 256  # pairs of a crowd's batch
_Request = tuple[Row, Future[ScoredPairs]]


class MicroBatcher:
    """Scores together the pairs that many request one by one: requests that arrive while a batch is
    computed form the next batch.

    A single request never waits. In a crowd, those just answered get two milliseconds to ask again;
    without that, one of them would form a batch alone while the others wait.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._queue: SimpleQueue[_Request | None] = SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="micro-batcher", daemon=True)
        self._thread.start()

    def submit(self, sentence1: str, sentence2: str | None = None) -> Future[ScoredPairs]:
        """Return a future with the logits and lengths of one pair; ModelError after `close`."""
        answer: Future[ScoredPairs] = Future()
        with self._closing:
            if self._closed:
                raise ModelError("This model is not loaded any more.", "Ask again.")
            self._queue.put(((sentence1, sentence2), answer))
        return answer

    def close(self) -> None:
        """Answer all earlier requests, then stop."""
        with self._closing:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        requests: list[_Request] = []
        while (request := self._queue.get()) is not None:
            until = time.monotonic() + (_GATHER if len(requests) > 1 else 0.0)
            requests = [request]
            with contextlib.suppress(Empty):
                while len(requests) < _MOST:
                    left = until - time.monotonic()
                    following = self._queue.get(left > 0, max(left, 0.0))
                    if following is None:
                        self._queue.put(None)  # ends the loop outside
                        break
                    requests.append(following)
            self._answer(requests)

    def _answer(self, requests: list[_Request]) -> None:
        """Answer each request. If a batch fails, each is tried alone, so that each gets its own
        error."""
        try:
            blocks = zip(*self._scorer.stream(row for row, _ in requests), strict=True)
            logits, tokens, cut = (np.concatenate(block) for block in blocks)
        except Exception as error:
            if len(requests) == 1:
                requests[0][1].set_exception(error)
                return
            for request in requests:
                self._answer([request])
            return
        for at, (_, answer) in enumerate(requests):
            answer.set_result(ScoredPairs(logits[[at]], tokens[[at]], cut[[at]]))
