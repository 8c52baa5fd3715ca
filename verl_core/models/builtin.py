"""The tiny builtin model: a Qwen2-architecture network of about 255,000 parameters and a tokenizer of its own, both
made here in a fraction of a second, so that the first run needs no download.

Shape and tokenizer are those measured to learn reliably on one CPU core (docs/quickstart.md): byte-level BPE with
single digits, hidden 96, 2 layers, 3 heads of 32 (a head size every engine accepts), tied embeddings, float32.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 384

# ChatML. `{% generation %}` marks the assistant's tokens for tools that read masks from the template.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer(corpus: Sequence[str]) -> Qwen2Tokenizer:
    """Qwen2's own byte-level BPE (digits are single tokens), trained on the corpus. The class is the one AutoTokenizer
    loads for a Qwen2 folder, so what is saved is what every engine reads."""
    empty = Qwen2Tokenizer(eos_token=END, pad_token=PAD, unk_token=PAD, padding_side="left", model_max_length=512)
    tokenizer = empty.train_new_from_iterator(
        corpus,
        vocab_size=VOCABULARY,
        new_special_tokens=[START],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """The network with seeded random weights; the process's own random state is left as it was."""
    config = Qwen2Config(  # head_dim is read by name everywhere in transformers, though no field of Qwen2Config
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,  # type: ignore[call-arg]
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


def write_builtin(folder: Path, corpus: Sequence[str], seed: int) -> None:
    """Builds both and writes a Hugging Face folder."""
    tokenizer = build_tokenizer(corpus)
    build_model(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
