import pytest

from .conftest import error


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([97, 98], ["ab"]), ([[97], [98, 99]], ["a", "bc"])],
)
def test_prompts_in_every_form(live, prompt, expected):
    reply = live.complete(prompt=prompt, n=2, best_of=2, echo=True).json()
    assert reply["object"] == "text_completion"
    assert [choice["index"] for choice in reply["choices"]] == list(range(2 * len(expected)))
    texts = [choice["text"] for choice in reply["choices"]]
    assert texts == [f"{text}Hello!" for text in expected for _ in range(2)]
    assert reply["usage"]["prompt_tokens"] == sum(map(len, expected))
    chunks = live.stream("/v1/completions", prompt=prompt, n=2, echo=True)
    streamed = [""] * len(texts)
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_a_stream_ends_in_an_empty_text_with_the_reason(live):
    choices = [choice for chunk in live.stream("/v1/completions") for choice in chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["stop"]
    assert choices[-1]["text"] == ""


def test_logprobs_in_the_older_format(live):
    expected = {
        "tokens": list("Hello!"),
        "token_logprobs": [-9999.0] * 6,
        "text_offset": list(range(6)),
    }
    scores = live.complete(logprobs=1).json()["choices"][0]["logprobs"]
    assert {key: scores[key] for key in expected} == expected
    assert scores["top_logprobs"][0] == {"H": -9999.0, "\x00": -0.5}
    parts = [c["logprobs"] for chunk in live.stream("/v1/completions", logprobs=1) for c in chunk["choices"]]
    assert [offset for part in parts if part for offset in part["text_offset"]] == expected["text_offset"]


def test_sixteen_tokens_unless_told_otherwise(live):
    assert live.complete().status_code == 200
    assert live.engine.requests[-1].max_tokens == 16
    assert live.complete(prompt="x" * 510).status_code == 200
    assert live.engine.requests[-1].max_tokens == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 5, "n": 8}, "prompt"),
        ({"prompt": ["a"] * 33}, "prompt"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_what_is_refused(live, body, param):
    assert error(live.complete(**body), 400)["param"] == param


def test_tokenize_and_back(live):
    reply = live.client.post("/tokenize", json={"prompt": "hé"}).json()
    assert reply == {"tokens": list("hé".encode()), "count": 3, "max_model_len": 512}
    assert live.client.post("/detokenize", json={"tokens": reply["tokens"]}).json() == {"prompt": "hé"}
    chat = live.client.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
    assert bytes(chat["tokens"]) == b"[user]x[assistant]"
    long = "x" * 20000
    assert live.client.post("/tokenize", json={"prompt": long}).json()["count"] == 20000
    for body in ({}, {"prompt": "a", "messages": [{"role": "user"}]}):
        error(live.client.post("/tokenize", json=body), 400)
    assert error(live.client.post("/detokenize", json={"tokens": [10**30]}), 400)["param"] == "tokens"
