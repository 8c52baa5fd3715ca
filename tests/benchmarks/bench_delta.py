"""What `weights.type=delta` sends after real AdamW steps of a small model at learning rate 1e-6.

    python tests/benchmarks/bench_delta.py [steps] [learning rate]

A randomly initialised Qwen2 of 27M parameters in float32 (standard deviation 0.02, as models of this family have)
takes AdamW steps on random tokens; the engine holds bfloat16. One JSON line a step: changed elements and their share,
bytes each, and the speed of encoding (compare, code, hash) and of applying (decode, write, hash) on this machine, in
GB/s of the bfloat16 model. Equality is checked to the last bit.
"""

import json
import sys
import time
from itertools import starmap

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_core.weights.delta.codec import apply, bits, encode
from verl_core.weights.hashing import tensor_hash

SHAPE = {"vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 4}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True}


def measure(model: torch.nn.Module, sent: dict[str, torch.Tensor], held: dict[str, torch.Tensor]) -> dict:
    """Brings `held` from `sent` to the model's present weights, and `sent` too."""
    now = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    start = time.perf_counter()
    coded = [
        (name, int(tensor_hash(new)), *encode(bits(new).view(-1), bits(sent[name]).view(-1)))
        for name, new in now.items()
    ]
    encoded = time.perf_counter()
    for name, value, payload, note in coded:
        apply(bits(held[name]), payload, note)
        assert int(tensor_hash(held[name])) == value
    applied = time.perf_counter()
    equal = all(starmap(torch.equal, ((bits(held[name]), bits(new)) for name, new in now.items())))
    sent.update(now)
    elements = sum(new.numel() for new in now.values())
    changed = sum(note["changed"] for *_, note in coded)
    size = sum(payload.numel() for *_, payload, _ in coded)
    return {
        "elements": elements, "changed": changed, "ratio": round(changed / elements, 5), "bytes": size,
        "bytes_per_changed": round(size / max(changed, 1), 3), "share_of_full": round(size / (2 * elements), 4),
        "encode_s": round(encoded - start, 3), "apply_s": round(applied - encoded, 3),
        "encode_gb_s": round(2e-9 * elements / (encoded - start), 2),
        "apply_gb_s": round(2e-9 * elements / (applied - encoded), 2), "equal": equal,
    }  # fmt: skip


def main(words: list[str]) -> None:
    steps, lr = (cast(word) for cast, word in zip((int, float), (*words, *("3", "1e-6")[len(words) :]), strict=True))
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, **HEADS, initializer_range=0.02))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    sent = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    held = {name: tensor.clone() for name, tensor in sent.items()}
    for step in range(1, steps + 1):
        ids = torch.randint(0, SHAPE["vocab_size"], (2, 64))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(json.dumps({"step": step, "lr": lr, **measure(model, sent, held)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
