"""Writes a tiny random Llama in Hugging Face's format, for a real vLLM: 1 MB, replies are noise of a known length.

Answers for: a folder with config, weights, tokenizer and chat template. Run by the interpreter of build/vllm, which has
torch and transformers; nothing here is imported by our own tests.

    build/vllm/bin/python tests/vllm/tiny_hf.py FOLDER
"""
# mypy: ignore-errors

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
MARKS = ["<s>", "</s>"]


def main(folder: str) -> None:
    torch.manual_seed(1)
    signs = [*MARKS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_only = Tokenizer(models.BPE({sign: i for i, sign in enumerate(signs)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, bos_token=MARKS[0], eos_token=MARKS[1]
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(signs),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="300KB")


if __name__ == "__main__":
    main(sys.argv[1])
