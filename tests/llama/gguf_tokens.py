#!/usr/bin/env python3
"""Makes the references of the example `llama` for the tokenizers of GGUF files.

    tests/llama/gguf_tokens.py FOLDER

Needs `transformers` 5, `tokenizers`, `tiktoken`, `sentencepiece`, `protobuf` and `gguf`. The checked-in references
(`examples/llama/tests/gguf`) were made with transformers 5.24.0, tokenizers 0.23.3, sentencepiece 0.2.3 and gguf
0.19.0.

    qwen2-tokens.gguf    byte-level BPE as in Qwen 2 and 3: single digits, NFC, no token at the start
    llama3-tokens.gguf   byte-level BPE as in Llama 3: whole words before merges
    tekken-tokens.gguf   byte-level BPE as in Mistral Nemo: capitals begin a word
    gemma-tokens.gguf    SentencePiece's BPE as in Gemma: no space at the start, runs of spaces and newlines as tokens
    llama-tokens.gguf    SentencePiece's BPE as in Llama 2 and Mistral: a space at the start
    tokens.json          awkward texts with what `transformers` makes of them, for each of the five:
                         {NAME: {start: [id..], cases: [[text, [id..], decoded]..]}}

The tokenizers are small ones, trained here, in the families' own kinds of files and classes. For the last two,
SentencePiece itself must give the same tokens. The GGUF files have the keys that llama.cpp's converter writes for them
(https://github.com/ggml-org/llama.cpp, `conversion/base.py`).
"""

import base64
import json
import pathlib
import sys
import tempfile

import gguf
import sentencepiece
import transformers
from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

SOURCE = """
The quick brown fox jumps over the lazy dog. A language model reads tokens, and it's the memory's speed that counts.
They're read 1, 20, 300, 12345 times a second; I'm sure you've seen it, we'll see, he'd say: DON'T WE'LL IT'S.
def forward(self, x):
    return x @ self.weight.T  # a product

        if x != y and (a <= b):
                print("https://example.com/a/b?c=d")
camelCase HTTPServer XMLHttpRequest McDonald iOS ABC aBc
Der schnelle braune Fuchs springt über den faulen Hund. Größe, Straße, Übung. Le cœur a ses raisons, café, naïve.
日本語のテキストもあります。中文文本也在这里。한국어 텍스트. Привет, мир! Ёлка. Ελληνικά. हिन्दी ไทย עברית العربية 🙂🚀👩‍👩‍👧
""" * 4

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\n\n\n   \n", "\t\tx\t", "a  b   c    d     e", " leading",
    "trailing ", "trailing  \n\n\n next", "\r\n\r\nwindows\r\n", "It's I'm you're they've he'd we'll don't",
    "IT'S I'M YOU'RE They'Ve HE'D WE'lL 'tis 's", "o'TISo'TISo'TISo'TISo'TISo o'tiso'tiso'tiso ma'llama ma'LLama",
    "it’s a ‘curly’ one", "12345 1,234.56 007 1a2b ١٢٣ １２３ ½ Ⅻ x²", "2026-11-29T07:50:00Z",
    "camelCase HTTPServer XMLHttpRequest McDonald iOS ABCdef aB", "ǅep ǅep ǅep Ǆ xʰ xʰ xʰ xʰ xʰX ªb ßS",
    "日本語のテキスト、中文文本。한국어", "漢字kanjiかなkana123 テキスト", "🙂🚀 👩‍👩‍👧 🇩🇪✌🏽",
    "café naïve cafe\u0301 nai\u0308ve e\u0301\u0301x \u0301y",
    "\u212b \ufb01 \u1e9b\u0323 \uac01 \u1100\u1161\u11a8", "the\u00a0nbsp \u2003em \u200bzero\u200d \u3000wide",
    "Привет, мир! Ёлка Ελληνικά", "हिन्दी ไทย עברית العربية", "foo/bar//baz /\n//x\n/*y*/\r\n",
    "!!!??? ... --- ===> != <= (a)[b]{c}", "https://example.com/a?b=c&d=%20#x",
    "def f(x):\n    return x\n\n\tif x:\n        pass", "__init__ _under_score a_b",
    "\ufeffbom \x01\x7f \u2581 literal a\u2581b", "Straßen\nStraßen straße", "<|end|><tool>x",
    "a<|end|>b <|end|> c\n<|end|>\n",
]

# A word that no merges make. Llama 3 and Nemo take it whole.
WORD = "Straßen"
SPECIAL = ["<|start|>", "<|end|>"]


def train(size):
    """The tokens of a byte-level BPE, the likeliest first, and its merges.

    It is trained on pieces of 11 characters instead of words, of the awkward texts too. So its merges join across the
    ends of words, and a tokenizer that splits words in another way gives other tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\s\S]{1,11}"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    text = (SOURCE + "".join(TEXTS) * 9).replace(WORD, "")
    tokenizer.train_from_iterator([text[start:] for start in range(11)], trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(tokenizer.to_str())["model"]
    assert spelled(WORD) not in model["vocab"]
    tokens = sorted(model["vocab"], key=model["vocab"].get) + [spelled(WORD)]
    return tokens, [tuple(pair) for pair in model["merges"]]


def spelled(text):
    """A text's bytes as byte-level tokens have them."""
    [(spelling, _)] = pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text)
    return spelling


def qwen2(folder):
    tokens, merges = train(800)
    tokenizer = transformers.Qwen2Tokenizer(
        vocab={token: at for at, token in enumerate(tokens)}, merges=merges, unk_token=None, bos_token=None,
        eos_token="<|end|>", pad_token=None)
    tokenizer.add_tokens([AddedToken("<|start|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer


def of_ranks(pattern):
    """A tokenizer of tiktoken's ranks, as `transformers` converts them."""
    def make(folder):
        tokens, _ = train(800)
        decoder = {letter: byte for byte, letter in transformers.convert_slow_tokenizer.bytes_to_unicode().items()}
        ranks = "".join(
            f"{base64.b64encode(bytes(decoder[letter] for letter in token)).decode()} {at}\n"
            for at, token in enumerate(tokens))
        path = folder / "ranks.tiktoken"
        path.write_text(ranks)
        backend = TikTokenConverter(str(path), pattern=pattern, extra_special_tokens=SPECIAL).converted()
        backend.post_processor = processors.TemplateProcessing(
            single="<|start|> $A", pair="<|start|> $A $B",
            special_tokens=[("<|start|>", backend.token_to_id("<|start|>"))])
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="<|start|>", eos_token="<|end|>", clean_up_tokenization_spaces=False)
    return make


def write_bytes(writer, tokenizer, pre, folder):
    tokenizer.save_pretrained(folder)
    state = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token["special"] for token in state["added_tokens"]}
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([
        TokenType.NORMAL if token not in added else TokenType.CONTROL if added[token] else TokenType.USER_DEFINED
        for token in tokens])
    gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(writer)


def pieces(folder, **settings):
    """Trains a SentencePiece model like those of Llama 2 and Gemma. Its path."""
    (folder / "source.txt").write_text(SOURCE)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "source.txt"), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=560,
        byte_fallback=True, split_digits=True, allow_whitespace_only_pieces=True, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1, minloglevel=2, **settings)
    return folder / "tokenizer.model"


RUNS = ["\n" * count for count in range(1, 4)] + ["▁" * count for count in range(2, 9)]


def gemma(folder):
    pieces(folder, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, bos_piece="<bos>", eos_piece="<eos>",
           pad_piece="<pad>", user_defined_symbols=["<mask>", *RUNS, "<|end|>"])
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
        "unk_token": "<unk>", "extra_special_tokens": ["<|end|>"], "add_bos_token": True}))
    return transformers.GemmaTokenizer.from_pretrained(folder)


def llama(folder):
    pieces(folder, unk_id=0, bos_id=1, eos_id=2, user_defined_symbols=["<|end|>"])
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "extra_special_tokens": ["<|end|>"], "add_bos_token": True, "legacy": True}))
    tokenizer = transformers.LlamaTokenizer.from_pretrained(folder)
    # As in the files of Llama 2 and Mistral, and as SentencePiece does it. The class adds no space to a text that
    # begins with one.
    tokenizer.backend_tokenizer.pre_tokenizer = None
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def write_pieces(writer, tokenizer, folder, prefix):
    """What the converter writes of `tokenizer.model` and of the added tokens in `tokenizer_config.json`."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    tokens, scores, types = [], [], []
    for at in range(model.vocab_size()):
        tokens.append(model.id_to_piece(at))
        scores.append(model.get_score(at))
        types.append(
            TokenType.UNKNOWN if model.is_unknown(at) else TokenType.CONTROL if model.is_control(at)
            else TokenType.BYTE if model.is_byte(at) else TokenType.NORMAL)
    for at, token in tokenizer.added_tokens_decoder.items():
        if types[at] != TokenType.UNKNOWN:
            looks_special = token.special or token.content.startswith("<|") and token.content.endswith("|>")
            types[at] = TokenType.CONTROL if looks_special else TokenType.USER_DEFINED
            scores[at] = -1000.0
            tokens[at] = token.content if looks_special else token.content.replace("▁", " ")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    for name in ["bos", "eos", "unk", "pad"]:
        if getattr(tokenizer, f"{name}_token_id") is not None:
            getattr(writer, f"add_{name}_token_id")(getattr(tokenizer, f"{name}_token_id"))
    writer.add_add_bos_token(True)
    if not prefix:
        writer.add_add_space_prefix(False)
    return model


def add_sizes(writer):
    """A model that has no weights here."""
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, architecture, make, pre in [
        ("qwen2", "qwen2", qwen2, "qwen2"),
        ("llama3", "llama", of_ranks(GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"]), "llama-bpe"),
        ("tekken", "llama", of_ranks(GGUF_PRE_TOKENIZER_SPLITS["tekken"]), "tekken"),
        ("gemma", "gemma2", gemma, None),
        ("llama", "llama", llama, None),
    ]:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            tokenizer = make(folder)
            writer = gguf.GGUFWriter(out / f"{name}-tokens.gguf", architecture)
            add_sizes(writer)
            if pre:
                model = None
                write_bytes(writer, tokenizer, pre, folder)
            else:
                model = write_pieces(writer, tokenizer, folder, name == "llama")
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            cases = []
            for text in TEXTS:
                ids = tokenizer.encode(text, add_special_tokens=False)
                if model and "<|end|>" not in text:
                    assert ids == model.encode(text), (name, text, ids, model.encode(text))
                cases.append([text, ids, tokenizer.decode(ids, skip_special_tokens=True)])
            start = tokenizer.encode("", add_special_tokens=True)
            for text, ids, _ in cases:
                assert tokenizer.encode(text) == start + ids
            expected[name] = dict(start=start, cases=cases)
            print(name, len(tokenizer), "tokens,", sum(len(ids) for _, ids, _ in cases), "in all texts")
    text = json.dumps(expected, ensure_ascii=False).replace("[[\"", "[\n[\"").replace("], [\"", "],\n[\"")
    (out / "tokens.json").write_text(text + "\n")
    print({path.name: path.stat().st_size for path in sorted(out.glob("*token*"))})


main()
