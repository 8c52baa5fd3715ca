"""A judge of one's own: a language model that generates on the CPU, in a process of its own."""

from __future__ import annotations

import asyncio
import hashlib
from itertools import count

from verl_core.config.schema import ModelConfig
from verl_core.config.schema_reward_models import JudgeConfig
from verl_core.controller.engines import CHILDREN
from verl_core.models.pretrained import load_hf_config, load_tokenizer
from verl_core.rewards.models.conversations import PlainText, require_template
from verl_core.rewards.models.endpoint import Reply, Unanswered
from verl_core.rollout.child import ChildEngine
from verl_core.rollout.child.errors import EngineLost
from verl_core.rollout.gathering import Gathering
from verl_core.rollout.protocol import Completion, Sampling, TokenRequest


class OwnEngine:
    """Keeps `verl_core.rewards.models.endpoint.LanguageModel`. Requests that come together are generated together,
    `max_concurrent` at a time.

    Raises:
        UserError, EnvError: the model is not there or cannot be loaded.
    """

    def __init__(self, cfg: JudgeConfig):
        self.cfg, self.name = cfg, str(cfg.path)
        model = ModelConfig(path=self.name)
        self._tokenizer = load_tokenizer(model)
        require_template(self._tokenizer, f"reward.judge.path={self.name}")
        self._plain = PlainText(self._tokenizer)
        self._longest = load_hf_config(model).get_text_config().max_position_embeddings
        self._numbers = count()
        self._sampling = Sampling(cfg.max_tokens, cfg.temperature)
        self._engine = ChildEngine(
            CHILDREN[str(cfg.engine)],
            {"model": self.name, "max_num_seqs": cfg.max_concurrent, "max_model_len": self._longest},
            stall_s=cfg.timeout_s,
            name="reward.judge.engine",
        )
        self._gathering = Gathering(self._generate)

    async def answer(self, prompt: str) -> Reply:
        """Raises Unanswered for a prompt that leaves no room, and where the engine ended or took too long."""
        ids = self._ids(prompt)  # not in a thread, so that the same requests travel together in every run
        if len(ids) + self.cfg.max_tokens > self._longest:
            raise Unanswered(f"question and answer leave the judge no room within its {self._longest} tokens")
        seed = int.from_bytes(hashlib.sha256(prompt.encode("utf-8", "replace")).digest()[:7])
        name = f"judge/{next(self._numbers)}"
        request = TokenRequest(name, name, tuple(ids), self._sampling, seed)
        try:
            completion = await self._gathering.ask(request)
        except EngineLost as error:
            raise Unanswered(f"the judge's engine ended: {error}") from error
        text = self._tokenizer.decode(completion.ids, skip_special_tokens=True)
        return Reply(str(text), whole=completion.finish == "stop")

    def _ids(self, prompt: str) -> list[int]:
        turns = [{"role": "user", "content": self._plain(prompt)}]
        text = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    async def close(self) -> None:
        self._engine.close()

    async def _generate(self, requests: list[TokenRequest]) -> list[Completion]:
        return await asyncio.to_thread(self._engine.generate, requests)
