"""Gathers the requests of many concurrent agent loops into few engine calls."""

from __future__ import annotations

from verl_core.rollout.gathering import Gathering
from verl_core.rollout.protocol import Completion, TokenRequest


class RolloutClient(Gathering[TokenRequest, Completion]):
    """`call` hands requests to the engine."""

    async def generate(self, request: TokenRequest) -> Completion:
        """The completion of this request; raises what the engine call raised."""
        return await self.ask(request)
