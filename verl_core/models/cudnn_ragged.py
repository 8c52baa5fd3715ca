"""cuDNN's flash attention on ragged rows, as a torch operator with a gradient.

torch calls the same kernels for padded batches only; for ragged ones it plans anew in every call (56 ms, torch 2.11).
Here a plan is built once for each shape and kept. On an H200, forward and backward of 8 x 2048 tokens take 1.55 ms with
16 heads of 128 where torch's varlen kernel takes 1.99 (tests/benchmarks/gpu_attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

try:
    import cudnn
except ImportError:  # no NVIDIA platform: torch's own kernels do the work
    cudnn = None

HEAD_DIM = 128  # the largest head these kernels are fast for


@cache
def usable(device: torch.device) -> bool:
    """Whether the device is a Hopper or newer GPU and the package is there; older GPUs gain nothing by cuDNN."""
    return cudnn is not None and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def attention(
    q: Tensor, k: Tensor, v: Tensor, cu_B1: Tensor, key_cu_B1: Tensor, limit: Tensor, key_limit: Tensor,
    scale: float, window: int,
) -> Tensor:  # fmt: skip
    """Causal attention within each sequence of a packed row. q [N, H, D]; k, v [M, K, D]; bf16 or fp16, D <= 128.

    cu_B1, key_cu_B1: offsets of the sequences in q and in k and v, int32; sequences of no token may stand at the end.
    They are one tensor where a sequence has as many keys as queries; else its last query stands at its last key.
    limit, key_limit: at least the longest ones, integers in host memory (as tensors, which compiled layers do not
    take for constants: another number would be compiled anew). window: a token sees itself and window-1 before it; 0:
    all.
    Returns [N, H, D]. Gradients of keys behind the last sequence are undefined.
    """
    out_NHD: Tensor = torch.ops.rlx.ragged_attention(
        q, k, v, cu_B1, key_cu_B1, limit, key_limit, scale, window
    )[0]  # fmt: skip
    return out_NHD


@dataclass(frozen=True)
class Shape:
    """What a plan is made for."""

    device: torch.device
    dtype: torch.dtype
    B: int
    T: int
    keys: int
    """The longest sequence's keys."""
    aligned: bool
    """Whether a sequence has as many keys as queries."""
    heads: int
    kv_heads: int
    D: int
    scale: float
    window: int
    deterministic: bool

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, cu_B1: Tensor, key_cu_B1: Tensor, limit: Tensor, key_limit: Tensor,
        scale: float, window: int,
    ) -> Shape:  # fmt: skip
        deterministic = torch.are_deterministic_algorithms_enabled()
        aligned = cu_B1.data_ptr() == key_cu_B1.data_ptr()
        _, heads, D = q.shape
        return cls(
            q.device, q.dtype, len(cu_B1) - 1, int(limit), int(key_limit), aligned, heads, k.shape[1], D, scale,
            window, deterministic,
        )  # fmt: skip


class Graph:
    """A cuDNN graph under construction: tensors are declared as [B, heads, T, D] with ragged offsets."""

    def __init__(self, shape: Shape):
        self.shape = shape
        self.io = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}[shape.dtype]
        f32 = cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            handle=_handle(shape.device), io_data_type=self.io, intermediate_data_type=f32, compute_data_type=f32
        )
        self.lengths = {n: self._plain(f"length_{n}", shape.B, cudnn.data_type.INT32) for n in ("q", "kv")}
        self.offsets = {n: self._plain(f"at_{n}", shape.B + 1, cudnn.data_type.INT64) for n in ("q", "kv", "stats")}

    def _plain(self, name: str, n: int, kind: Any) -> Any:
        return self.graph.tensor(name=name, dim=[n, 1, 1, 1], stride=[1, 1, 1, 1], data_type=kind)

    def _layout(self, T: int, heads: int, D: int) -> tuple[list[int], list[int]]:
        return [self.shape.B, heads, T, D], [T * heads * D, D, heads * D, 1]

    def rows(self, name: str, offset: str) -> Any:
        """An input like q ("q"), like k and v ("kv"), or the softmax statistics ("stats")."""
        *layout, kind = self._form(offset)
        dim, stride = self._layout(*layout)
        t = self.graph.tensor(name=name, dim=dim, stride=stride, data_type=kind)
        t.set_ragged_offset(self.offsets[offset])
        return t

    def output(self, tensor: Any, offset: str) -> Any:
        *layout, kind = self._form(offset)
        dim, stride = self._layout(*layout)
        tensor.set_output(True).set_dim(dim).set_stride(stride).set_data_type(kind)
        tensor.set_ragged_offset(self.offsets[offset])
        return tensor

    def _form(self, offset: str) -> tuple[int, int, int, Any]:
        s = self.shape
        return {
            "q": (s.T, s.heads, s.D, self.io),
            "kv": (s.keys, s.kv_heads, s.D, self.io),
            "stats": (s.T, s.heads, 1, cudnn.data_type.FLOAT),
        }[offset]

    def mask(self) -> dict[str, Any]:
        """Causal, windowed, and blind to what lies behind a sequence."""
        corner = cudnn.diagonal_alignment
        return {
            "attn_scale": self.shape.scale,
            "use_padding_mask": True,
            "seq_len_q": self.lengths["q"],
            "seq_len_kv": self.lengths["kv"],
            "diagonal_alignment": corner.TOP_LEFT if self.shape.aligned else corner.BOTTOM_RIGHT,
            "diagonal_band_right_bound": 0,
            "diagonal_band_left_bound": self.shape.window or None,
        }

    def plan(self, tensors: list[Any]) -> Plan:
        g = self.graph
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        g.check_support()
        g.build_plans()
        slots = [*tensors, *self.lengths.values(), *self.offsets.values()]
        return Plan(g, [t.get_uid() for t in slots], g.get_workspace_size())


@dataclass(frozen=True)
class Plan:
    graph: Any
    uids: list[int]
    workspace: int

    def run(self, shape: Shape, tensors: list[Tensor], cu_B1: Tensor, key_cu_B1: Tensor) -> None:
        """`tensors` in the order the plan was made with. Given as tensors: the library describes a bare address in
        Python, which takes longer than the kernel of a small layer."""
        workspace = torch.empty(max(self.workspace, 1), dtype=torch.uint8, device=shape.device)
        slots = (*(t.detach() for t in tensors), *_places(shape, cu_B1, key_cu_B1))
        self.graph.execute(dict(zip(self.uids, slots, strict=True)), workspace, handle=_handle(shape.device))


_places_of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _places(shape: Shape, cu_B1: Tensor, key_cu_B1: Tensor) -> tuple[Tensor, ...]:
    """Lengths of the sequences in q and in k, and offsets in elements of q, of k and of the statistics. All layers ask
    for the same ones, so they are kept as long as `key_cu_B1` lives."""
    known = _places_of.setdefault(key_cu_B1, {})
    key = (shape.heads, shape.kv_heads, shape.D)
    if key not in known:
        q_B, kv_B = cu_B1.diff(), key_cu_B1.diff()
        cu, key_cu = cu_B1.to(torch.int64), key_cu_B1.to(torch.int64)
        q_width, kv_width = shape.heads * shape.D, shape.kv_heads * shape.D
        known[key] = (q_B, kv_B, cu * q_width, key_cu * kv_width, cu * shape.heads)
    return known[key]


_handles: dict[tuple[torch.device, int], Any] = {}


def _handle(device: torch.device) -> Any:
    """The library's handle of a device and torch's present stream there."""
    stream = torch.cuda.current_stream(device).cuda_stream
    if (device, stream) not in _handles:
        handle = _handles[device, stream] = cudnn.create_handle()
        cudnn.set_stream(handle=handle, stream=stream)
    return _handles[device, stream]


@cache
def _forward_plan(shape: Shape) -> Plan:
    g = Graph(shape)
    q, k, v = g.rows("q", "q"), g.rows("k", "kv"), g.rows("v", "kv")
    out, stats = g.graph.sdpa(name="forward", q=q, k=k, v=v, generate_stats=True, **g.mask())
    return g.plan([q, k, v, g.output(out, "q"), g.output(stats, "stats")])


@cache
def _backward_plan(shape: Shape, tokens: int, keys: int) -> Plan:
    """`tokens` and `keys` bound the lengths of q and of k and size the workspace."""
    g = Graph(shape)
    q, k, v = g.rows("q", "q"), g.rows("k", "kv"), g.rows("v", "kv")
    out, d_out, stats = g.rows("out", "q"), g.rows("d_out", "q"), g.rows("stats", "stats")
    d_q, d_k, d_v = g.graph.sdpa_backward(
        name="backward", q=q, k=k, v=v, o=out, dO=d_out, stats=stats,
        max_total_seq_len_q=tokens, max_total_seq_len_kv=keys,
        use_deterministic_algorithm=shape.deterministic, **g.mask(),
    )  # fmt: skip
    return g.plan([q, k, v, out, d_out, stats, g.output(d_q, "q"), g.output(d_k, "kv"), g.output(d_v, "kv")])


# defined by their schemas: torch's custom_op, which reads them off the function, takes longer in every call
torch.library.define(
    "rlx::ragged_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor cu, Tensor key_cu, Tensor limit, Tensor key_limit, float scale,"
    " int window) -> (Tensor, Tensor)",
)
torch.library.define(
    "rlx::ragged_attention_backward",
    "(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor stats, Tensor cu, Tensor key_cu, Tensor limit,"
    " Tensor key_limit, float scale, int window) -> (Tensor, Tensor, Tensor)",
)


@torch.library.impl("rlx::ragged_attention", "CUDA")
def _forward(
    q: Tensor, k: Tensor, v: Tensor, cu_B1: Tensor, key_cu_B1: Tensor, limit: Tensor, key_limit: Tensor,
    scale: float, window: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    shape = Shape.of(q, k, cu_B1, key_cu_B1, limit, key_limit, scale, window)
    out, stats = torch.empty_like(q), q.new_empty(*q.shape[:2], 1, dtype=torch.float32)
    _forward_plan(shape).run(shape, [q, k, v, out, stats], cu_B1, key_cu_B1)
    return out, stats


@torch.library.register_fake("rlx::ragged_attention")
def _(q, k, v, cu_B1, key_cu_B1, limit, key_limit, scale, window):  # type: ignore[no-untyped-def]
    return q.new_empty(q.shape), q.new_empty(*q.shape[:2], 1, dtype=torch.float32)


@torch.library.impl("rlx::ragged_attention_backward", "CUDA")
def _backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, stats: Tensor, cu_B1: Tensor, key_cu_B1: Tensor,
    limit: Tensor, key_limit: Tensor, scale: float, window: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    q, k, v, d_out = q.contiguous(), k.contiguous(), v.contiguous(), d_out.contiguous()
    shape = Shape.of(q, k, cu_B1, key_cu_B1, limit, key_limit, scale, window)
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    tokens, keys = (1 << (len(x) - 1).bit_length() for x in (q, k))  # powers of two: few plans
    _backward_plan(shape, tokens, keys).run(shape, [q, k, v, out, d_out, stats, d_q, d_k, d_v], cu_B1, key_cu_B1)
    return d_q, d_k, d_v


@torch.library.register_fake("rlx::ragged_attention_backward")
def _(d_out, q, k, v, out, stats, cu_B1, key_cu_B1, limit, key_limit, scale, window):  # type: ignore[no-untyped-def]
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *places, scale, window = inputs
    ctx.save_for_backward(q, k, v, *output, *places)
    ctx.rest = scale, window


def _gradient(ctx: Any, d_out: Tensor, _: Tensor) -> tuple:
    q, k, v, out, stats, *places = ctx.saved_tensors
    grads = torch.ops.rlx.ragged_attention_backward(d_out, q, k, v, out, stats, *places, *ctx.rest)
    return *grads, *(None,) * 6


torch.library.register_autograd("rlx::ragged_attention", _gradient, setup_context=_save)
