"""FlagScale's YAML as a scenario: Megatron-LM's options word by word, in sections.

What the sections hold: flagos-ai/FlagScale, examples/*/conf/train; the launcher's part stands in a file of its own (``experiment.runner``),
which is given beside it. Jobs on unlike machines (``hetero``) are refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parsim.interop.import_draft import ImportDraft
from parsim.interop.import_sections import write_sequence_length
from parsim.interop.interpolations import behind, resolved
from parsim.interop.keys import Key, Source, key_table, of_document
from parsim.interop.megatron.model import read_model
from parsim.interop.megatron.parallel import read_parallel
from parsim.interop.megatron.training import read_training
from parsim.interop.nemo import LAUNCH, check_training, launched
from parsim.interop.recognise import Foreign
from parsim.scenario import files


def read_flagscale(draft: ImportDraft, foreign: Foreign) -> None:
    """Write the scenario of a training file and, where it is given, of the file of its experiment."""
    table = key_table("flagscale")
    sections = str(files.read(Path(__file__).parent / "tables" / "flagscale.yaml").tree["sections"]).split()
    documents = [document for document in (foreign.document, *foreign.more) if document is not None]
    written = [key for document in documents for key in of_document(document, "flagscale").keys]
    keys: list[Key] = []
    for key in resolved(draft, tuple(written), sections, "flagscale"):
        if "hetero" in key.name and key.value not in (None, False, [], {}):
            draft.errors.append(
                key.finding("not supported yet: FlagScale's jobs on unlike machines", "write them as cluster.nodes: docs/mixed-clusters.md")
            )
        keys.append(replace(key, name=behind(key.name, sections)))
    source = Source((key for key in keys if key.name not in LAUNCH), table)
    check_training(draft, source)
    tensor = draft.take(source, "parallel.tensor.size") or 1
    layers = read_model(draft, source, tensor)
    launch = launched(draft, keys, source)
    length = write_sequence_length(draft, source.of("training.sequence_length"))
    read_training(draft, source, length)
    read_parallel(draft, source, layers)
    draft.write("software.profile", "megatron-core", note="FlagScale trains with Megatron-Core")
    draft.take(source, "software.gradient_accumulation_fusion")
    draft.close(source)
    draft.close(launch)
