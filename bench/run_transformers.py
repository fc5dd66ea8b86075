"""transformers on the same weights: python run_transformers.py GGUF THREADS

Reads requests as lines of JSON, {"prompt": text, "max_tokens": n}, and answers each with a line: prompt_tokens,
and arrivals, the seconds from the start to each token. The first line it writes says that it is ready.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import torch
from glmserve.models.gguf import Gguf
from glmserve.store.checkpoint import open_checkpoint
from glmserve.store.tokenizer import load_tokenizer
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def load(gguf: Path) -> LlamaForCausalLM:
    """The model in float32, from our reader's configuration and tensors; no weight is held twice."""
    checkpoint = open_checkpoint(gguf)
    config = LlamaConfig(**checkpoint.config)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    to_float = Gguf().to_float
    weights = {
        name: to_float(checkpoint.read(name), info.dtype).reshape(info.shape)
        for name, info in checkpoint.tensors.items()
        if name != "rope_freqs.weight"
    }
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    return model.eval()


def generate(model: LlamaForCausalLM, prompt: list[int], max_tokens: int) -> list[float]:
    """Greedy, with the model's own KV cache and only the last position's logits: seconds until each token."""
    begin = time.perf_counter()
    cache = DynamicCache(config=model.config)
    ids = torch.tensor([prompt])
    arrivals = []
    for _ in range(max_tokens):
        logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        ids = logits[:, -1].argmax(-1, keepdim=True)
        ids.item()  # a client sees each token before the next one is computed
        arrivals.append(time.perf_counter() - begin)
    return arrivals


@torch.inference_mode()
def main(gguf: str, threads: str) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # past_key_values gets another name in transformers 5.40
    torch.set_num_threads(int(threads))
    path = Path(gguf)
    model = load(path)
    tokenizer = load_tokenizer(path).tokenizer
    generate(model, [1], 2)
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompt = tokenizer.encode(request["prompt"], add_special_tokens=False).ids
        arrivals = generate(model, prompt, request["max_tokens"])
        answer = {"prompt_tokens": len(prompt), "arrivals": arrivals}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
