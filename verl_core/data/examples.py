"""Data sets whose rows have the answers that are learned from: demonstrations, pairs of a chosen and a rejected answer,
single answers with a label."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from verl_core.batch import Segment, Trajectory
from verl_core.config.schema import DataConfig
from verl_core.data.conversation import Encoded, Rendered, Template, Unmaskable
from verl_core.data.dataset import PromptDataset, PromptRow
from verl_core.data.example_rows import ExampleRow
from verl_core.data.lengths import truncate
from verl_core.data.reading import Form, Rows, Split
from verl_core.data.rows import RawRow, raise_for
from verl_core.data.sources import Files

log = logging.getLogger(__name__)


class ExampleDataset(PromptDataset):
    """Prompts with their answers, tokenised together. `take` and all about order are a `PromptDataset`'s.

    data.max_prompt_length bounds what comes before the first learned token, data.max_response_length all after it. With
    a data.truncation that cuts, an answer loses its end, whichever side a prompt loses. Raises UserError besides for
    rows that the chat template renders so that no mask is right.
    """

    what = "examples"

    def __init__(
        self,
        files: Files,
        cfg: DataConfig,
        tokenizer: Any,
        split: Split,
        seed: int,
        form: Form,
        read: Rows | None = None,
    ):
        self.form = form
        self.template = Template(tokenizer, cfg.apply_chat_template_kwargs)
        self._examples: dict[int, list[Encoded]] = {}
        super().__init__(files, cfg, tokenizer, split, seed, read)
        same = [i for i in self.indexes if self._example(i).says_nothing]
        if same:
            r = self._example(same[0])
            log.warning(
                "%d pairs have equal answers and teach nothing, the first in %s row %d", len(same), r.file, r.row
            )
        if read is None:  # found now, not in the middle of a run: templates differ in what they make of earlier turns
            self._encode([self.indexes[0], *(i for i in self.indexes if self._turns(i) > 1)])

    def group(self, row: PromptRow) -> list[Trajectory]:
        """The row's answers: the demonstration; or the chosen (`sample` 0) and the rejected one (1); or a labelled one,
        as `sample` 0 where it is wanted, else 1. `mask` is 1 on the assistant's turns that answer the prompt."""
        self._encode([row.index])
        r = self._example(row.index)
        return [
            self._trajectory(row, r, answer.sample, encoded)
            for answer, encoded in zip(r.answers, self._examples[row.index], strict=True)
        ]

    @property
    def last_id(self) -> int:
        """The token that ends the first example's answer, as the chat template has it."""
        self._encode(self.indexes[:1])
        return self._examples[self.indexes[0]][0].ids[-1]

    def _trajectory(self, row: PromptRow, r: ExampleRow, sample: int, e: Encoded) -> Trajectory:
        cut = e.prompt_length + self.cfg.max_response_length
        prompt = truncate(e.ids[: e.prompt_length], self.cfg.max_prompt_length, self.cfg.truncation)
        ids, mask = [*prompt, *e.ids[e.prompt_length : cut]], [0] * len(prompt) + list(e.mask[e.prompt_length : cut])
        return Trajectory(
            ids=ids,
            mask=mask,
            logps=[0.0] * len(ids),
            versions=[-1] * len(ids),
            segments=_segments(mask),
            group=row.uid,
            sample=sample,
            finish="length" if len(e.ids) > cut else "stop",
            meta={"data_source": r.data_source, "margin": r.margin},
        )

    def _example(self, index: int) -> ExampleRow:
        r = self._raw[index]
        assert isinstance(r, ExampleRow)
        return r

    def _turns(self, index: int) -> int:
        """Learned turns of the longest answer."""
        return max(sum(m["role"] == "assistant" for m in answer.turns) for answer in self._example(index).answers)

    # --- in place of the prompts' -----------------------------------------------------------------------------------

    def _content(self, r: RawRow) -> list[Any]:
        assert isinstance(r, ExampleRow)
        answers = [[answer.sample, answer.turns] for answer in r.answers]
        return [r.messages, r.data_source, r.margin, r.tools, answers]

    @property
    def _limits(self) -> str:
        return f"{super()._limits} or data.max_response_length={self.cfg.max_response_length}"

    def _too_long(self, index: int) -> tuple[str, str] | None:
        if index not in self._examples:  # short by its bytes
            return None
        if prompt := super()._too_long(index):
            return prompt[0], f"a prompt of {prompt[1]}"
        _, longest = self._lengths(index)
        if longest > self.cfg.max_response_length:
            return "data.max_response_length", f"an answer of {longest} tokens"
        return None

    def _lengths(self, index: int) -> tuple[int, int]:
        return len(self._ids[index]), max(len(e.ids) - e.prompt_length for e in self._examples[index])

    def _rendered(self, r: ExampleRow) -> list[Rendered]:
        known = len(r.messages)
        return [self.template.render([*r.messages, *answer.turns], known, r.tools) for answer in r.answers]

    def _measure_chunk(self, chunk: Sequence[int]) -> None:
        self._encode_rendered({i: own for i, own in self._render_all(chunk).items() if self._may_be_too_long(own)})

    def _may_be_too_long(self, conversations: Sequence[Rendered]) -> bool:
        """The learned text begins where a token does, so the texts before and after bound their tokens apart."""
        if (fits := self._fits) is None:
            return True
        cut = [(c.text[: c.learned[0][0]], c.text[c.learned[0][0] :]) for c in conversations]
        most = self.cfg.max_prompt_length, self.cfg.max_response_length
        return not all(fits(asked, most[0]) and fits(answered, most[1]) for asked, answered in cut)

    def _encode_chunk(self, chunk: Sequence[int]) -> None:
        self._encode_rendered(self._render_all(chunk))

    def _render_all(self, chunk: Sequence[int]) -> dict[int, list[Rendered]]:
        """Raises UserError for all rows of which the template makes something that cannot be learned from."""
        broken: list[tuple[str, int, str]] = []
        rendered: dict[int, list[Rendered]] = {}
        for i in chunk:
            r = self._example(i)
            try:
                rendered[i] = self._rendered(r)
            except Unmaskable as e:
                broken.append((r.file, r.row, str(e)))
            except Exception as e:  # a template is a program of its own: it raises what it likes
                broken.append((r.file, r.row, f"refuses the conversation: {e}"))
        raise_for(
            broken,
            "conversations that cannot be learned from, as the chat template",
            hint="change the rows, data.apply_chat_template_kwargs or model.custom_chat_template; see docs/data.md",
        )
        return rendered

    def _encode_rendered(self, rendered: dict[int, list[Rendered]]) -> None:
        encoded = iter(self.template.encode([c for own in rendered.values() for c in own]))
        for i, own in rendered.items():
            self._examples[i] = [next(encoded) for _ in own]
            first = self._examples[i][0]
            self._ids[i] = first.ids[: first.prompt_length]


def _segments(mask: Sequence[int]) -> list[Segment]:
    """Stretches that the model is to produce, and those it is given: the prompt first, then what came back to it."""
    found: list[Segment] = []
    for learned, run in groupby(mask):
        start = found[-1].end if found else 0
        kind = "response" if learned else "tool" if found else "prompt"
        found.append(Segment(kind, start, start + len(list(run))))
    return found


def form_of(needs: Sequence[str]) -> Form:
    """What an algorithm that reads a data set learns from, by what its entry in the catalogue needs."""
    return "pairs" if "pairs" in needs else "labels" if "labels" in needs else "demonstrations"
