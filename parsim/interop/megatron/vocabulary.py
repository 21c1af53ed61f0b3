"""The rows of the word table: what options say, what a tokenizer has by its name, what they are padded to."""

from __future__ import annotations

import re

from parsim.interop.import_draft import ImportDraft
from parsim.interop.keys import Key, Source
from parsim.interop.tokenizers import rows_of
from parsim.scenario.support import EXAMPLES
from parsim.units import is_digits

PADDING = 128
"""--make-vocab-size-divisible-by, if not given"""
TOKENIZERS = ("patch_tokenizer_type", "tokenizer_model", "tokenizer_name_or_path", "vocab_file", "tokenizer_type", "merge_file")
"""options that may name a tokenizer, the most special first"""
PATHS = ("tokenizer_model", "tokenizer_name_or_path", "vocab_file")
"""those of them that name a file or folder"""
_SIZED = re.compile(r"(?:tokenizers?|vocab(?:ulary)?)[_-]?(?:size[_-]?)?([1-9][0-9]{3,5})(?![0-9])", re.IGNORECASE)
"""a name such as nordic_tokenizer_131072"""
EXTRA = ("extra_vocab_size", "padded_extra_vocab", "vocab_extra_ids")
DEFAULTS = {"pretrain_gpt": "GPT2BPETokenizer", "pretrain_bert": "BertWordPieceLowerCase", "pretrain_t5": "BertWordPieceLowerCase"}
"""begin of a program -> --tokenizer-type, if not given (its ``args_defaults``)"""
SAID = ("padded_vocab_size", "pad_vocab_size_to", "tokenizer_type", "patch_tokenizer_type", *EXTRA)


def read_vocabulary(draft: ImportDraft, source: Source, tensor: int, program: str = "") -> None:
    """Rows of the word table, and what they are padded to a multiple of; `program` has a tokenizer of its own where none is named."""
    padded, size = source.get("padded_vocab_size", "pad_vocab_size_to"), source.of("model.vocabulary")
    multiple, given = source.of("model.vocab_divisible_by"), draft.given
    if given.vocabulary is not None:
        draft.write("model.vocabulary", given.vocabulary, note="--vocabulary")
        for other in (padded, size, source.get("tokenizer_type")):
            draft.harmless(other, "replaced by --vocabulary")
        draft.take(source, "model.vocab_divisible_by")
        return
    if (rows := draft.whole(padded, 1)) is not None:
        draft.write("model.vocabulary", rows, padded)
        if rows % (PADDING * tensor):
            draft.write("model.vocab_divisible_by", 1, padded, note="they are padded already")
        for other in (size, source.get("tokenizer_type"), multiple):
            draft.harmless(other, f"{padded.written if padded else ''} counts")
        return
    _read_rows(draft, source, size, program.rpartition("/")[2])
    draft.take(source, "model.vocab_divisible_by")


def _read_rows(draft: ImportDraft, source: Source, size: Key | None, program: str) -> None:
    tokenizer, path = source.get("tokenizer_type"), "model.vocabulary"
    extra = next((key for name in EXTRA if (key := source.get(name)) is not None and is_digits(key.text)), None)
    if draft.given.tokenizer is not None:
        known = rows_of(draft.given.tokenizer)
        if known is None:
            draft.fill(path, f"{EXAMPLES[path]}; no size is known of the tokenizer {draft.given.tokenizer}: --vocabulary N", tokenizer)
        else:
            draft.write(path, known.rows, note=f"--tokenizer {draft.given.tokenizer}: {known.name}")
            draft.harmless(tokenizer, "replaced by --tokenizer")
        draft.harmless(size, "replaced by --tokenizer")
        return
    if size is not None and (rows := draft.whole(size, 1)) is not None:
        draft.write(path, rows, size)
        draft.harmless(tokenizer, "--vocab-size says how many rows there are")
        return
    sized = next(((key, match[1]) for key in source.all(*PATHS) if (match := _SIZED.search(key.text)) is not None), None)
    if sized is not None:
        draft.write(path, int(sized[1]), sized[0], note="the number in its name")
        draft.remark(f"the rows are the number in the name of {sized[0].quoted(draft.file)}", path)
        draft.harmless(tokenizer, f"{sized[0].written} says how many rows there are")
        return
    for name in TOKENIZERS:
        key = source.get(name)
        named = key is not None and isinstance(key.value, str) and not (name == "merge_file" and tokenizer is not None)
        known = rows_of(key.text, option=name) if named and key is not None else None
        if known is not None and key is not None:
            more = int(extra.text) if extra is not None else 0
            note = f"the vocabulary of {known.name} ({known.source})"
            if name == "merge_file":
                note = "merges are GPT-2's tokenizer's, taken for its own vocabulary"
            draft.write(path, known.rows + more, key, extra, note=note)
            for other in (tokenizer, source.get("patch_tokenizer_type")):
                draft.harmless(other, f"{key.written} says which it is")
            return
    usual = next((word for begin, word in DEFAULTS.items() if program.startswith(begin)), None) if tokenizer is None else None
    known = rows_of(usual, option="tokenizer_type") if usual is not None else None
    if known is not None:
        more = int(extra.text) if extra is not None else 0
        draft.write(
            path, known.rows + more, extra, note=f"{program} takes {usual} if no tokenizer is named, whose vocabulary is {known.name}'s"
        )
        return
    draft.fill(path, f"{EXAMPLES[path]}; the script says it in a tokenizer only: --vocabulary N, or --tokenizer NAME", tokenizer)
    draft.harmless(size, "not a number")
