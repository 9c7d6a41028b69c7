#!/usr/bin/env python3
"""Makes the references of the example `llama` for texts: tokenizers, chat templates and sampling.

    tests/llama/texts.py FOLDER

Needs `transformers` 5, `tokenizers` and PyTorch 2.4 or newer. The checked-in references
(`examples/llama/tests/texts`) were made with PyTorch 2.6.0, transformers 5.24.0 and tokenizers 0.23.3.

    bytes.json, pieces.json   two tokenizers: bytes as in Llama 3 and Qwen, pieces with bytes as in Mistral and Gemma
    tokens.json               texts with their token ids, for both
    chats.json                templates with conversations and what `apply_chat_template` makes of them
    sampling.json             logits with settings and the probabilities that `transformers` draws from

The templates are written for this test, with the forms and constructs of each family's template.
"""

import json
import pathlib
import sys

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

SOURCE = """
The quick brown fox jumps over the lazy dog. A language model reads tokens and says which token comes next. It's the
memory's speed that counts: one token of a model is one reading of its weights. They're read 1, 20, 300 times a second.
def forward(x, weight):
    return x @ weight.T  # a product
Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Übung. Le cœur a ses raisons que la raison ne
connaît point. 日本語のテキストもあります。中文文本也在这里。 Привет, мир! 🙂🚀👩‍👩‍👧 are emojis.
""" * 3

TEXTS = [
    "Once upon a time", "It's 2026, isn't it?", "  two  spaces\n\n\tand a tab ", "über die Straße", "日本語 と 中文",
    "Привет, мир!", "a 🙂 and 👩‍👩‍👧, then 🚀🚀", "x = weight.T  # 12345", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "<|end|>", "a<|start|>b <|end|>",
]

# https://huggingface.co/docs/tokenizers: Llama 3 and Qwen split words like this before their bytes are joined.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def of_bytes():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|start|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([SOURCE], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", pair="<|start|> $A $B", special_tokens=[("<|start|>", 0)])
    return tokenizer


def of_pieces():
    special = ["<unk>", "<|start|>", "<|end|>"]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    alphabet = [c for c in sorted(set(SOURCE)) if c.isascii() and c not in " \n"] + ["▁", "ü", "ß", "日"]
    trained.train_from_iterator([SOURCE], trainers.BpeTrainer(
        vocab_size=180, limit_alphabet=len(alphabet), initial_alphabet=alphabet, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    names = special + [f"<0x{byte:02X}>" for byte in range(256)]
    names += [piece for piece in sorted(state["vocab"], key=state["vocab"].get) if piece not in names]
    # As `transformers` converts SentencePiece's files: the likelier a piece, the sooner it is made.
    vocab = {name: at for at, name in enumerate(names)}
    skipped = names[:len(special) + 256]
    merges = generate_merges(vocab, {name: -float(at) for name, at in vocab.items()}, skipped)
    tokenizer = Tokenizer(models.BPE(
        vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", pair="<|start|> $A $B", special_tokens=[("<|start|>", 1)])
    return tokenizer


# Llama 3: headers, the date, tools in the first message, trimmed contents.
LLAMA3 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Dates have " ~ date_string|length ~ " digits.\n" }}
{%- if tools is not none %}
    {{- "Functions:\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim }}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

# Qwen 2: a system message by default, tools in XML.
QWEN2 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or
           (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

# Qwen 3: what an answer thought is left out before the last question. Methods of Python's strings.
QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and
           not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' }}
            {{- content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

# Mistral: the roles must alternate; the system message is in the last question.
MISTRAL = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set note = "A text on \
one line. " %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, roles must alternate user/assistant.") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + note + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, not " + message["role"]) }}
    {%- endif %}
{%- endfor %}
"""

# Gemma 2: no system message; the answer's role is `model`. Blocks without marks that trim.
GEMMA2 = r"""{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}
{% endif %}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}
    {% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}
"""

# Gemma 3: contents may be lists of parts; macros; numbers and truth values as Python writes them.
GEMMA3 = r"""{% macro part(item) %}
    {%- if item['type'] == 'image' -%}<start_of_image>
    {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}
    {%- endif -%}
{% endmacro %}
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'skip' -%}{%- continue -%}{%- endif -%}
            {{ part(item) }}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
{{ add_generation_prompt }} {{ tools }} {{ 1.0 }} {{ messages | length > 2 }} {{ 7 // 2 }} {{ 7 / 2 }}
{{ messages[0].get("name") }} {{ (messages[0].role | tojson)[:-1] }} {{ "a,b".split(",") | join("/") }} {{ "abc"[-2:] }}
"""

USER = {"role": "user", "content": " What is 2 < 3 & \"4\"?\n"}
ANSWER = {"role": "assistant", "content": "<think>\nÜber alles\n</think>\n\n It's true.\n"}
MORE = {"role": "user", "content": "Und auf Deutsch? 日本"}
SYSTEM = {"role": "system", "content": " Be brief. "}
PARTS = {"role": "user", "content": [
    {"type": "text", "text": " See "}, {"type": "image"}, {"type": "skip"}, {"type": "text", "text": "this"}]}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "function": {"name": "weather", "arguments": {"where": "Zürich", "days": 2, "exact": True}}}]}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather's \"forecast\" <b>", "parameters": {
        "type": "object", "required": ["where"],
        "properties": {"where": {"type": "string"}, "days": {"type": "integer", "default": None, "high": 1.5}}}}}]

CONVERSATIONS = {
    "one": [USER], "several": [USER, ANSWER, MORE], "system": [SYSTEM, USER, ANSWER, MORE],
    "answered": [USER, ANSWER], "twice": [USER, MORE], "parts": [PARTS], "call": [SYSTEM, USER, CALL],
}
TEMPLATES = {
    "llama3": (LLAMA3, ["one", "several", "system", "answered", "call"]),
    "qwen2": (QWEN2, ["one", "several", "system", "answered"]),
    "qwen3": (QWEN3, ["one", "several", "system", "answered", "twice"]),
    "mistral": (MISTRAL, ["one", "several", "system", "twice", "answered"]),
    "gemma2": (GEMMA2, ["one", "several", "system", "answered", "twice"]),
    "gemma3": (GEMMA3, ["one", "several", "system", "parts"]),
}


def chats():
    cases = []
    for name, (template, conversations) in TEMPLATES.items():
        bare = PreTrainedTokenizerFast(tokenizer_object=of_bytes(), bos_token="<|start|>", eos_token="<|end|>")
        bare.chat_template = template
        for conversation in conversations:
            for tools in [None, TOOLS] if name in ("llama3", "qwen2") else [None]:
                for answer in [True, False]:
                    case = dict(template=name, conversation=conversation, tools=tools is not None, answer=answer)
                    try:
                        case["expected"] = bare.apply_chat_template(
                            CONVERSATIONS[conversation], tools=tools, add_generation_prompt=answer, tokenize=False)
                    except Exception as error:
                        case["error"] = str(error)
                    cases.append(case)
    return dict(
        bos="<|start|>", eos="<|end|>", tools=TOOLS, conversations=CONVERSATIONS,
        templates={name: template for name, (template, _) in TEMPLATES.items()}, cases=cases)


def tokens(tokenizers):
    cases = []
    for name, tokenizer in tokenizers.items():
        for text in TEXTS:
            with_special = tokenizer.encode(text).ids
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append(dict(
                tokenizer=name, text=text, special=with_special, plain=plain, decoded=tokenizer.decode(with_special)))
    return cases


def sampling():
    from transformers.generation.logits_process import (
        LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
        TopKLogitsWarper, TopPLogitsWarper)
    cases = []
    generator = torch.Generator().manual_seed(1)
    for settings in [
        dict(temperature=1.0), dict(temperature=0.6), dict(temperature=1.7, top_k=5), dict(temperature=0.8, top_p=0.7),
        dict(temperature=1.0, top_p=0.05), dict(temperature=1.3, min_p=0.2), dict(temperature=1.0, min_p=1.0),
        dict(temperature=0.9, top_k=12, top_p=0.9, min_p=0.03, repetition_penalty=1.3),
        dict(temperature=1.0, top_k=8, repetition_penalty=0.7), dict(temperature=1.0, top_k=1000, top_p=1.0, min_p=0.0),
    ]:
        logits = 3 * torch.randn([1, 40], generator=generator)
        text = torch.randint(0, 40, [1, 12], generator=generator)
        processors = LogitsProcessorList()
        if "repetition_penalty" in settings:
            processors.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
        processors.append(TemperatureLogitsWarper(settings["temperature"]))
        if settings.get("top_k"):
            processors.append(TopKLogitsWarper(settings["top_k"]))
        if settings.get("top_p", 1.0) < 1.0:
            processors.append(TopPLogitsWarper(settings["top_p"]))
        if settings.get("min_p"):
            processors.append(MinPLogitsWarper(settings["min_p"]))
        probabilities = processors(text, logits.clone()).softmax(-1)
        cases.append(dict(
            settings=settings, logits=logits[0].tolist(), text=text[0].tolist(),
            probabilities=[round(p, 8) for p in probabilities[0].tolist()]))
    return cases


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers = {"bytes": of_bytes(), "pieces": of_pieces()}
    for name, tokenizer in tokenizers.items():
        (folder / f"{name}.json").write_text(tokenizer.to_str() + "\n")
    for name, cases in {"tokens": tokens(tokenizers), "chats": chats(), "sampling": sampling()}.items():
        (folder / f"{name}.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
    print({path.name: path.stat().st_size for path in sorted(folder.iterdir())}, transformers.__version__)


main()
