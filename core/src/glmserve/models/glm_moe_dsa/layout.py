"""Names, shapes and places of the tensors of `glm_moe_dsa`, in the checkpoint and in the pages."""

from __future__ import annotations

from glmserve.api import LinearSpec, ModelInfo, PagedTensor

from ..entries import FLOAT8, Entry, Part
from .config import FAMILY, GlmConfig

Shapes = dict[str, tuple[int, ...]]
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head"
BIAS = "e_score_correction_bias"


def at(index: int) -> str:
    return f"model.layers.{index}"


def latent_entry(config: GlmConfig, index: int, kv_dtype: str) -> Entry:
    """A token's entry in layer `index`: the latent after its norm, then the key after its rotation.

    In 8 bits the key stays in 16: it carries the position, and an error there displaces the token.
    """
    name = f"layers.{index}.latent"
    if kv_dtype != FLOAT8:
        return Entry((Part(name, config.latent_width, kv_dtype),))
    return Entry((Part(name, config.kv_rank, FLOAT8), Part(f"layers.{index}.rope", config.rope_dim, "bfloat16")))


def index_entry(config: GlmConfig, index: int, kv_dtype: str) -> Entry:
    """A token's indexer key in full layer `index`."""
    return Entry((Part(f"layers.{index}.index", config.index_dim, kv_dtype),))


def paged_of(config: GlmConfig, index: int, full: bool, kv_dtype: str) -> tuple[PagedTensor, ...]:
    paged = latent_entry(config, index, kv_dtype).paged
    return paged + index_entry(config, index, kv_dtype).paged if full else paged


def attention_linears(config: GlmConfig, index: int, full: bool) -> dict[str, LinearSpec]:
    """By role. Layers with one input, whole on every rank, are one product: q_a with kv_a, wk with weights_proj."""
    prefix, attention = at(index), f"{at(index)}.self_attn"
    head = config.nope_dim + config.rope_dim
    found = {
        "down": LinearSpec(
            f"{prefix}.attention_down",
            (f"{attention}.q_a_proj", f"{attention}.kv_a_proj_with_mqa"),
            (config.q_rank, config.latent_width),
            config.hidden,
        ),
        "q": LinearSpec(f"{prefix}.q", (f"{attention}.q_b_proj",), (config.heads * head,), config.q_rank),
        "kv": LinearSpec(
            f"{prefix}.kv",
            (f"{attention}.kv_b_proj",),
            (config.heads * (config.nope_dim + config.value_dim),),
            config.kv_rank,
        ),
        "o": LinearSpec(f"{prefix}.o", (f"{attention}.o_proj",), (config.hidden,), config.heads * config.value_dim),
    }
    if full:
        indexer = f"{attention}.indexer"
        found["index_q"] = LinearSpec(
            f"{prefix}.index_q", (f"{indexer}.wq_b",), (config.index_heads * config.index_dim,), config.q_rank
        )
        found["index_k"] = LinearSpec(
            f"{prefix}.index_k",
            (f"{indexer}.wk", f"{indexer}.weights_proj"),
            (config.index_dim, config.index_heads),
            config.hidden,
        )
    return found


def swiglu_linears(name: str, hidden: int, inner: int) -> tuple[LinearSpec, LinearSpec]:
    """(gate and up, down) of the MLP stored under `name`."""
    return (
        LinearSpec(f"{name}.gate_up", (f"{name}.gate_proj", f"{name}.up_proj"), (inner, inner), hidden),
        LinearSpec(f"{name}.down", (f"{name}.down_proj",), (hidden,), inner),
    )


def router_linear(config: GlmConfig, index: int) -> LinearSpec:
    return LinearSpec(f"{at(index)}.router", (f"{at(index)}.mlp.gate",), (config.experts,), config.hidden)


def expert_linears(config: GlmConfig, index: int, expert: int) -> tuple[LinearSpec, LinearSpec]:
    return swiglu_linears(f"{at(index)}.mlp.experts.{expert}", config.hidden, config.expert_inner)


def shared_linears(config: GlmConfig, index: int) -> tuple[LinearSpec, LinearSpec]:
    inner = config.expert_inner * config.shared_experts
    return swiglu_linears(f"{at(index)}.mlp.shared_experts", config.hidden, inner)


def dense_linears(config: GlmConfig, index: int) -> tuple[LinearSpec, LinearSpec]:
    return swiglu_linears(f"{at(index)}.mlp", config.hidden, config.dense_inner)


def layer_linears(config: GlmConfig, index: int, full: bool, sparse: bool) -> list[LinearSpec]:
    found = list(attention_linears(config, index, full).values())
    if not sparse:
        return [*found, *dense_linears(config, index)]
    found += [router_linear(config, index), *shared_linears(config, index)]
    for expert in range(config.experts):
        found += expert_linears(config, index, expert)
    return found


def layer_vectors(config: GlmConfig, index: int, full: bool, sparse: bool) -> Shapes:
    """Norms and biases of a decoder layer."""
    prefix = at(index)
    shapes: Shapes = {
        f"{prefix}.input_layernorm.weight": (config.hidden,),
        f"{prefix}.post_attention_layernorm.weight": (config.hidden,),
        f"{prefix}.self_attn.q_a_layernorm.weight": (config.q_rank,),
        f"{prefix}.self_attn.kv_a_layernorm.weight": (config.kv_rank,),
    }
    if full:
        for which in ("weight", "bias"):
            shapes[f"{prefix}.self_attn.indexer.k_norm.{which}"] = (config.index_dim,)
    if sparse:
        shapes[f"{prefix}.mlp.gate.{BIAS}"] = (config.experts,)
    return shapes


def unread(config: GlmConfig) -> tuple[str, ...]:
    """What names begin with that some converters write and nothing reads: the indexers of shared layers."""
    return tuple(f"{at(i)}.self_attn.indexer." for i, full in enumerate(config.full_indexer) if not full)


def nextn_linears(config: GlmConfig) -> list[LinearSpec]:
    """Those of the next-token-prediction layer, a decoder layer that always selects itself, and its input product."""
    index = config.layers
    return [nextn_input(config), *layer_linears(config, index, full=True, sparse=True)]


def nextn_input(config: GlmConfig) -> LinearSpec:
    index = config.layers
    return LinearSpec(f"{at(index)}.eh", (f"{at(index)}.eh_proj",), (config.hidden,), 2 * config.hidden)


def nextn_vectors(config: GlmConfig) -> Shapes:
    index = config.layers
    own = {f"{at(index)}.{name}.weight": (config.hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    return {**own, **layer_vectors(config, index, full=True, sparse=True)}


def info_of(config: GlmConfig, kv_dtype: str, eos_ids: tuple[int, ...]) -> ModelInfo:
    """The model without its next-token-prediction layer, which only a drafter loads."""
    linears: list[LinearSpec] = []
    paged: tuple[PagedTensor, ...] = ()
    for i, (full, sparse) in enumerate(zip(config.full_indexer, config.sparse_mlp, strict=True)):
        linears += layer_linears(config, i, full, sparse)
        paged += paged_of(config, i, full, kv_dtype)
    linears.append(LinearSpec("head", (HEAD,), (config.vocab_size,), config.hidden))
    return ModelInfo(
        family=FAMILY,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden,
        num_layers=config.layers,
        max_context=config.max_context,
        paged=paged,
        linears=tuple(linears),
        embedding=EMBEDDING,
        eos_ids=eos_ids,
    )
