"""README.zh-CN.md says what README.md says: the same commands, the same numbers, the same sections."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))


def blocks(text: str) -> list[str]:
    return re.findall(r"^(?:<!-- ci: \w+ -->\n)?```.*?^```$", text, re.MULTILINE | re.DOTALL)


def accuracy(text: str) -> str:
    found = re.search(r"^<!-- accuracy in short -->\n(.*?)^<!-- end of accuracy in short -->\n", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def described(text: str) -> list[str]:
    """Commands in the table of commands."""
    return [name for line in text.splitlines() if line.startswith("| ") for name in re.findall(r"`(parsim [^`]+)`", line)]


def test_code_blocks_are_the_same():
    assert len(blocks(ENGLISH)) >= 5  # the lines of output among them
    assert blocks(CHINESE) == blocks(ENGLISH)
    assert [block.partition(" -->")[0] for block in blocks(CHINESE) if block.startswith("<!-- ci")] == ["<!-- ci: run", "<!-- ci: test"]


def test_the_accuracy_table_is_the_same():
    assert accuracy(CHINESE) == accuracy(ENGLISH)


def test_the_same_commands_are_described():
    assert described(CHINESE) == described(ENGLISH)


def test_sections_and_lists_have_the_same_shape():
    def shape(text: str) -> list[str]:
        body = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        return re.findall(r"^(#+|- |\| )", body.partition("## Further reading")[0].partition("## 延伸阅读")[0], re.MULTILINE)

    assert shape(CHINESE) == shape(ENGLISH)


def test_every_page_of_the_english_one_is_linked():
    def targets(text: str) -> set[str]:
        return {target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target}

    assert targets(ENGLISH) - {"README.zh-CN.md"} <= targets(CHINESE)
    assert all((ROOT / target).exists() for target in targets(CHINESE))


def test_punctuation_is_chinese():
    """Between Chinese characters stand full-width marks: a half-width comma or bracket there is a slip of the keyboard."""
    body = re.sub(r"^```.*?^```$|`[^`]*`", "", CHINESE, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"[\u4e00-\u9fff][,;:?!()][\u4e00-\u9fff]?", body) == []
