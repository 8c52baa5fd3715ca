"""FLOPs of a decoder's passes, from its shape: the one formula behind plans, utilisation (MFU) and balanced ranks."""

from __future__ import annotations

from dataclasses import dataclass

from verl_core.planning.shapes import ModelShape


@dataclass(frozen=True)
class Flops:
    """What a pass over one sequence costs: a sum over its tokens, its answers and the pairs of tokens that attend."""

    token: float
    """A token through all layers' matrices: of a mixture of experts those that the token takes."""
    answer: float
    """A token whose distribution is wanted, through the output layer."""
    pair: float
    """A token and one that it looks back on, in the layers that see the whole sequence."""
    windowed_pair: float
    """The same in the layers that look back on `window` tokens."""
    window: int

    @classmethod
    def forward(cls, shape: ModelShape, head: bool = True) -> Flops:
        """Of a forward pass: 2 a parameter and token (arXiv 2001.08361, section 2.1); 4 x query width a pair, for the
        products of queries with keys and of weights with values. Fewer key heads than query heads change what is kept,
        not what is computed. `head` false: a value model, whose output layer costs nothing."""
        pair = 4.0 * shape.q_width
        windowed = shape.windowed_layers if shape.sliding_window else 0
        return cls(
            token=2.0 * shape.active_layers_params,
            answer=2.0 * shape.embedding_params * head,
            pair=pair * (shape.layers - windowed),
            windowed_pair=pair * windowed,
            window=shape.sliding_window or 0,
        )

    def update(self, adapter: int | None = None) -> Flops:
        """Of forward and backward without recomputation: three times a forward pass. `adapter`: trained parameters
        beside frozen ones, which take no weight gradient; their matrices cost two passes and the adapter's three."""
        matrices, trained = (3.0, 0.0) if adapter is None else (2.0, 6.0 * adapter)
        return Flops(
            token=matrices * self.token + trained,
            answer=matrices * self.answer,
            pair=3.0 * self.pair,
            windowed_pair=3.0 * self.windowed_pair,
            window=self.window,
        )

    def __add__(self, other: Flops) -> Flops:
        """Of two passes through models of one shape."""
        return Flops(
            token=self.token + other.token,
            answer=self.answer + other.answer,
            pair=self.pair + other.pair,
            windowed_pair=self.windowed_pair + other.windowed_pair,
            window=self.window,
        )

    def sequence(self, length: int, answers: int) -> float:
        """Of a sequence of `length` tokens, the distribution of `answers` of which is wanted. Attention is causal: half
        of the square, and of a window's band what lies in the sequence."""
        near = min(length, self.window)
        pairs = self.pair * length * length / 2 + self.windowed_pair * near * (length - near / 2)
        return self.token * length + self.answer * answers + pairs
