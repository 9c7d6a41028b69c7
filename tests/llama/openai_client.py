#!/usr/bin/env python3
"""Holds `llama-serve` against OpenAI's own client (`openai` from PyPI).

    tests/llama/openai_client.py PROGRAM

PROGRAM is target/release/llama-serve. The script starts it with a small model of random weights, on the device that
BURN_ROCM_PROVIDER names.
"""
import concurrent.futures
import subprocess
import sys

import openai

KEY = "secret"
command = [sys.argv[1], "--random", "tiny", "--dtype", "f32", "--name", "tiny", "--port", "0", "--context", "256"]
server = subprocess.Popen(command + ["--sequences", "8", "--api-key", KEY], stderr=subprocess.PIPE, text=True)


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def refused(kind, call, text):
    try:
        call()
    except kind as error:
        check(text in str(error), f"{text!r} in {error}")
        return error
    raise AssertionError(f"{text!r}: nothing was refused")


def run(client):
    check([model.id for model in client.models.list()] == ["tiny"], "the list of models")
    check(client.models.retrieve("tiny").object == "model", "the model")

    # Without a tokenizer, a text is the tokens' numbers.
    complete = lambda **more: client.completions.create(model="tiny", prompt="Once upon a time", max_tokens=20, **more)
    whole = complete(temperature=0)
    text = whole.choices[0].text
    check(len(text.split()) == 20 and whole.choices[0].finish_reason == "length", whole)
    check((whole.usage.prompt_tokens, whole.usage.completion_tokens) == (16, 20), whole.usage)
    pieces = list(complete(temperature=0, stream=True))
    check("".join(piece.choices[0].text for piece in pieces) == text, pieces)
    check(len(pieces) > 10 and pieces[-1].choices[0].finish_reason == "length", pieces)
    third = " " + text.split()[2] + " "
    stopped = complete(temperature=0, stop=[third]).choices[0]
    check((stopped.text, stopped.finish_reason) == (text[: text.find(third)], "stop"), stopped)
    seeds = [complete(seed=seed).choices[0].text for seed in (5, 5, 6)]
    check(seeds[0] == seeds[1] != seeds[2], seeds)
    scored = complete(temperature=0, logprobs=3).choices[0].logprobs
    check(len(scored.tokens) == len(scored.token_logprobs) == 20 and max(scored.token_logprobs) <= 0, scored)
    check("".join(scored.tokens) == text, scored)

    talk = lambda **more: client.chat.completions.create(
        model="tiny", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
        max_completion_tokens=12, **more)
    answer = talk(temperature=0, logprobs=True, top_logprobs=4)
    message = answer.choices[0].message
    check((message.role, len(message.content.split())) == ("assistant", 12), answer)
    content = answer.choices[0].logprobs.content
    check([entry.token for entry in content] == [entry.top_logprobs[0].token for entry in content], content)
    check(bytes(b for entry in content for b in entry.bytes).decode() == message.content, content)
    pieces = list(talk(temperature=0, stream=True, stream_options={"include_usage": True}))
    check(pieces[0].choices[0].delta.role == "assistant", pieces[0])
    said = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    check((said, pieces[-1].usage.completion_tokens) == (message.content, 12), pieces)
    check(pieces[-1].usage.prompt_tokens_details.cached_tokens > 0, pieces[-1].usage)
    choices = talk(n=3, seed=1).choices
    check([choice.index for choice in choices] == [0, 1, 2], choices)
    check(len({choice.message.content for choice in choices}) == 3, choices)
    # A penalty that forbids repetitions, for a model that repeats.
    check(len(set(complete(temperature=0, frequency_penalty=2, presence_penalty=2).choices[0].text.split())) > 2, "")

    # A client that hangs up after two pieces, and others at once.
    with complete(temperature=0, stream=True) as stream:
        next(stream), next(stream)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(lambda _: complete(temperature=0).choices[0].text, range(24)))
    check(set(texts) == {text}, texts)

    refused(openai.NotFoundError, lambda: client.completions.create(model="other", prompt="x"), "does not exist")
    long = refused(openai.BadRequestError, lambda: complete(extra_body={"max_tokens": 999}), "maximum context length")
    check(long.code == "context_length_exceeded", long)
    refused(openai.BadRequestError, lambda: complete(logit_bias={"5": 9}), "`logit_bias` is not supported")
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    refused(openai.BadRequestError, lambda: talk(tools=[tool]), "tool calls are not supported")
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}
    refused(openai.BadRequestError, lambda: talk(response_format=schema), "JSON schemas are not supported")
    wrong = client.with_options(api_key="wrong")
    refused(openai.AuthenticationError, lambda: wrong.models.list(), "Incorrect API key")


try:
    for line in server.stderr:
        print(line, end="", file=sys.stderr)
        if line.startswith("tiny at "):
            break
    else:
        raise SystemExit("the server has not started")
    run(openai.OpenAI(base_url=line.split()[-1], api_key=KEY, max_retries=0, timeout=120))
    server.terminate()
    check(server.wait(60) == 0, "the server's exit status")
    print(f"openai {openai.__version__}: all checks hold")
finally:
    server.kill()
