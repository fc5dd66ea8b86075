"""Requests and replies of the OpenAI routes, as clients send and read them.

Types are strict: "5" is not a number and 1 is not a boolean. Unknown fields are kept aside, to be counted, or refused
where they ask for something that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from ..limits import MAX_BIASES, MAX_CHOICES, MAX_STOP_IDS, MAX_STOP_LENGTH, MAX_STOPS
from .messages import Message, Strict, says
from .prompt import TemplateOptions


class Reply(BaseModel):
    """A reply: every field is always present."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH, strict=True)]
Stop = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None,
    says(f"'stop' must be a string of 1 to {MAX_STOP_LENGTH} characters, or a list of at most {MAX_STOPS} of them"),
]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


class StreamOptions(Strict):
    include_usage: StrictBool | None = Field(None, description="End with a chunk that holds the usage.")


class Generation(Strict):
    """What chat and completions have in common. null means: not given; then temperature, top_p, top_k, min_p and
    repetition_penalty are what the model's own generation_config.json says."""

    model: StrictStr = Field("default", description="The served model's name, or `default`.")
    max_tokens: StrictInt | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy.")
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: StrictInt | None = Field(None, ge=-1, description="0 and -1 mean no limit.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    seed: StrictInt | None = Field(None, ge=-(2**63), le=2**63 - 1, description="Same seed, same tokens.")
    stop: Stop = None
    stop_token_ids: list[StrictInt] | None = Field(None, max_length=MAX_STOP_IDS)
    n: StrictInt | None = Field(None, ge=1, le=MAX_CHOICES)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = Field(
        None, max_length=MAX_BIASES, description="Token id to bias."
    )
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, allow_inf_nan=False)
    ignore_eos: StrictBool | None = None
    min_tokens: StrictInt | None = Field(None, ge=0)
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    draft: StrictBool | None = Field(None, description="false: no speculation for this request. The tokens are equal.")
    user: StrictStr | None = None
    metadata: dict[str, Any] | None = None


class ChatRequest(TemplateOptions, Generation):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: StrictInt | None = Field(
        None, ge=1, description="The newer name of max_tokens. Not given: up to the end of the context."
    )
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = Field(None, ge=0, le=20)


Prompt = Annotated[
    StrictStr
    | Annotated[list[StrictInt], Field(min_length=1)]
    | Annotated[list[StrictStr], Field(min_length=1)]
    | Annotated[list[Annotated[list[StrictInt], Field(min_length=1)]], Field(min_length=1)],
    says("'prompt' must be a string, a list of strings, a list of token ids, or a list of such lists, none empty"),
]


class CompletionRequest(Generation):
    prompt: Prompt
    max_tokens: StrictInt | None = Field(None, ge=1, description="16 if not given, as with OpenAI.")
    logprobs: StrictInt | None = Field(None, ge=0, le=5)
    echo: StrictBool | None = Field(None, description="Begin the text with the prompt.")


UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "thinking": (),
    "web_search_options": (),
    "store": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "grammar": (),
    "json_schema": (),
    "chat_template": (),
    "cache_salt": (),
    "priority": (0,),
}
"""Known fields that ask for what is not here -> the values (besides null) that ask for nothing."""
CHAT_ONLY: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": ("none",),
    "chat_template_kwargs": ({},),
}
"""The same for completions, which have no template: fields of chat."""


class PromptDetails(Reply):
    cached_tokens: int


class CompletionDetails(Reply):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


Finish = Literal["stop", "length"]


class ReplyFunction(Reply):
    name: str
    arguments: str
    """The text of a JSON object; cut off when the reply was."""


class ReplyToolCall(Reply):
    id: str
    type: Literal["function"] = "function"
    function: ReplyFunction


class TopLogprob(Reply):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Reply):
    content: list[TokenLogprob]
    refusal: None = None


class ChatReplyMessage(Reply):
    role: Literal["assistant"] = "assistant"
    content: str | None
    """null when the reply is calls alone."""
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ReplyToolCall] | None = None


class ChatChoice(Reply):
    index: int
    message: ChatReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish | Literal["tool_calls"]


class ChatReply(Reply):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class TextLogprobs(Reply):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Reply):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish


class CompletionReply(Reply):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class ModelCard(Reply):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "glmserve"
    max_model_len: int


class ModelList(Reply):
    object: Literal["list"] = "list"
    data: list[ModelCard]
