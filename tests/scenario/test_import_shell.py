"""Shell scripts as commands: what is expanded, what is followed, what is only said. Nothing is executed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsim.errors import InputError
from parsim.interop.command import invocation
from parsim.interop.formats import import_config
from parsim.interop.import_draft import Given
from parsim.interop.keys import Key
from parsim.interop.shell import ShellScript
from parsim.interop.shell_values import legible


def words(text: str, **variables: str) -> list[list[str]]:
    return [[legible(word.text) for word in command.words] for command in ShellScript(text, variables).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c # d", [["a", "b", "c"]]),
        ("a 'b c' \"d e\" f\\ g#h", [["a", "b c", "d e", "f g#h"]]),
        ("a \\\n  b; c && d\ne", [["a", "b"], ["c"], ["d"], ["e"]]),
        ("X=3\na $X ${X} '$X' \"$X\" \\$X", [["a", "3", "3", "$X", "3", "$X"]]),
        ("X='p q'\na $X \"$X\" x${X}y", [["a", "p", "q", "p q", "xp", "qy"]]),
        ("a ${N:-4} ${N-5} ${N:+6} ${N}", [["a", "4", "5"]]),
        ("N=; a ${N:-4} ${N-5}b ${N:+6}", [["a", "4", "b"]]),
        ("N=8; a ${N:-4} ${N:+6} ${M:-$N} ${M:-${N}}", [["a", "8", "6", "8", "8"]]),
        ("G=8 N=4\na $((G*N)) $(( $G * $N + 1 )) $((G / 3 % 2))", [["a", "32", "33", "0"]]),
        ("G=8 N=4 A=(6)\na $[$G*N] x$[ (G + 1) / ${A[0]} ]y \"$[G-N]\" '$[G]' $[", [["a", "32", "x1y", "4", "$[G]", "$["]]),
        ("A=(x 'y z' # no\n w)\na ${A[@]} ; b \"${A[@]}\"", [["a", "x", "y", "z", "w"], ["b", "x", "y z", "w"]]),
        ("A=(x 'y z' w)\nc $A ${A[2]} ${#A[@]} ${A[9]}", [["c", "x", "w", "3"]]),
        ("A=(x)\nA+=(y)\nB=\"p\"\nB+=\" q\"\na ${A[@]} $B", [["a", "x", "y", "p", "q"]]),
        ("export X=1 Y=2\na $X $Y", [["a", "1", "2"]]),
        ("X=1 a $X", [["a", "1"]]),
        ("a > out 2>&1 | tee log; b &", [["a"], ["b"]]),
        ("cat <<EOF\na b\nEOF\nc", [["cat"], ["c"]]),
        ("if [ 1 == 2 ]; then\n a\nelif [[ x != y ]]; then b\nelse c\nfi\nd", [["b"], ["d"]]),
        ("if [ -z \"$X\" ]; then a; fi\nif [ -n \"$X\" ]; then b; fi", [["a"]]),
        ("if [ $N -gt 2 ]; then a; else b; fi", [["b"]]),
        ("N=3\nif [ $N -gt 2 ] && [ $N -lt 4 ]; then a; else b; fi", [["a"]]),
        ("[ 1 -eq 1 ] && a || b", [["a"]]),
        ("[ 1 -eq 2 ] && a || b", [["b"]]),
        ("M=7b\ncase $M in\n 1b) a;;\n 7b|8b) b ;;\n *) c\nesac\nd", [["b"], ["d"]]),
        ("for T in 1 2; do a $T; done; b", [["a", "1"], ["b"]]),
        ("while true; do a; done; b", [["b"]]),
        ("run() {\n a 1\n}\nrun", [["a", "1"], ["run"]]),
        ("(a; b)", [["a"], ["b"]]),
        ("A=()\na x \"$@\" \"${A[@]}\" \"\" \"$NONE\"", [["a", "x", "", ""]]),
        ("if [ ! -f missing.py ]; then exit 1; fi\na", [["a"]]),
        ("a `date +%y` $(dirname) b", [["a", "`date +%y`", "$(dirname)", "b"]]),
        ("a <file b >out c", [["a", "b", "c"]]),
        ("X=1\r\na $X\r\n", [["a", "1"]]),
        ("N=4; L=\"torchrun --n $N\"; C='x.py --a 1'\nsrun -l bash -c '$L --r $R $C'",
         [["srun", "-l", "torchrun", "--n", "4", "--r", "x.py", "--a", "1"]]),
        ("C=\"x.py --a 1\"\neval python $C", [["python", "x.py", "--a", "1"]]),
        ("N=2\nssh host \"cd d; N=3 python x.py --n $N\"", [["ssh", "host", "cd", "d"], ["ssh", "host", "python", "x.py", "--n", "2"]]),
        ("bash -c 'a \\\n b; bash -c \"c d\"'", [["a", "b"], ["c", "d"]]),
        ("a $(seq 3) $(seq -s, 2 4) $(echo p q) $(printf '%s-' x y)", [["a", "1", "2", "3", "2,3,4", "p", "q", "x-y-"]]),
        ("a $(expr 2 \\* 3) $(echo '2*3' | bc) `basename /x/y.sh .sh` $(echo a,b | tr ',' ' ')", [["a", "6", "6", "y", "a", "b"]]),
        ("printf -v X '[%s]' \"$(IFS=,; echo \"1 2\")\"\na $X", [["a", "[1", "2]"]]),
        ("A=(1 2 3)\nprintf -v X '[%s]' \"$(IFS=', '; echo \"${A[*]}\")\"\na $X", [["a", "[1,2,3]"]]),
        ("X=''\nfor i in {1..3}; do X+=$i; done\na $X", [["a", "123"]]),
        ("for ((i=0; i<4; i++)); do if (( i % 2 )); then A+=($i); fi; done\na ${A[@]}", [["a", "1", "3"]]),
        ("i=0\nwhile [ $i -lt 3 ]; do i=$((i+1)); X+=x; done\na $X $i", [["a", "xxx", "3"]]),
        ("for i in 1 2 3; do if [ $i == 2 ]; then break; fi; X+=$i; done\na $X", [["a", "1"]]),
        ("small() { L=$1; }\nlarge() { L=48; }\nsmall 12\na $L", [["small", "12"], ["a", "12"]]),
        ("X=a-b-c\na ${X//-/_} ${X/-/+} ${X%-*} ${X##*-} ${X:2:1} ${X^^} ${#X}", [["a", "a_b_c", "a+b-c", "a-b", "c", "b", "A-B-C", "5"]]),
        ("N=$(nproc)\na $((N*2)) ${N:-8} x$N", [["a", "$N", "$N", "x$N"]]),
        ("while read -r x; do N=4; done <f\na $N", [["a", "$N"]]),
        ("(( N = 3 * 4 )); let M=N+1\na $N $M $((2**10)) $((N > 3 && M < 3))", [["a", "12", "13", "1024", "0"]]),
        ("a <path to data> b", [["a", "<path to data>", "b"]]),
    ],
)  # fmt: skip
def test_commands(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_variables_of_the_user_are_not_overwritten() -> None:
    assert words("N=1\nN+=2\na $N $1", N="9", **{"1": "x"}) == [["a", "9", "x"]]


def test_files_that_a_script_writes() -> None:
    text = "N=4\ncat <<EOT > c.json\n{\"n\": $N}\nEOT\nsed 's/A/5/' t.json | sed 's/B/6/' > d.json\npython x.py --a 1"
    files = invocation(text, "x", {}).files
    assert (files["c.json"].text, files["c.json"].line) == ('{"n": 4}\n', 3)
    assert (files["d.json"].template, files["d.json"].replaced) == ("t.json", ("s/A/5/", "s/B/6/"))


def test_values_that_grow_without_end_are_not_known() -> None:
    doubled = "A=aaaaaaaaaa\n" + "A=$A$A\n" * 60 + "for ((;;)); do B+=b; done\nf() { f; }\nf\nx ${#A} $B"
    assert words(doubled)[-1][0] == "x"


def test_what_has_no_value_is_remembered_by_line() -> None:
    script = ShellScript("a $X\nb $(date) ${Y:-1}\nc $X $2")
    assert {line: list(names) for line, names in script.variables.unset.items()} == {1: ["X"], 2: ["$(date)"], 3: ["X", "2"]}


def test_notes() -> None:
    notes = [(note.line, note.message) for note in ShellScript("source env.sh\nfor T in 1 2 4; do a; done\nwhile x; do b; done").notes]
    assert notes == [
        (1, "env.sh is another script, which is not read"),
        (2, "the loop is read once, with T=1 (not with 2, 4)"),
        (3, "what stands in a while loop is not read"),
    ]


def options(text: str) -> list[tuple[str, Any, int | None]]:
    return [(key.written, key.value, key.line) for key in invocation(text, "x", {}).options]


@pytest.mark.parametrize(
    "text",
    [
        "torchrun --nnodes 2 train.py --a 1 --b=2 \\\n --c -3 x \\\n --d",
        "ARGS=\"--a 1 --b=2 \\\n --c -3 x \\\n --d\"\npython train.py $ARGS".replace('ARGS="', 'ARGS="', 1),
        "ARGS=(--a 1 --b=2\n --c -3 x\n --d)\npython -m torch.distributed.run train.py \"${ARGS[@]}\"",
        "A=\"--a 1 --b=2\"; B=\"--c -3 x\"\nsh -c \"python train.py $A $B --d\"",
        "--a 1 --b=2\n--c -3 x\n--d",
        "ARGS=(--a 1 --b=2\n --c -3 x\n --d)",
    ],
)  # fmt: skip
def test_options_of_every_form(text: str) -> None:
    assert [(name, value) for name, value, _ in options(text)] == [("--a", "1"), ("--b", "2"), ("--c", ["-3", "x"]), ("--d", True)]
    for name, _, line in options(text):
        assert line is not None
        assert name in text.splitlines()[line - 1]


def test_options_of_the_launcher_and_of_slurm() -> None:
    text = "#!/bin/bash\n#SBATCH -N 4\n#SBATCH --gpus-per-node=8\nsrun -l python -u pretrain_gpt.py --x 1"
    call = invocation(text, "x", {})
    assert [(key.written, key.value, key.line) for key in call.launch] == [
        ("#SBATCH --nodes", "4", 2), ("#SBATCH --gpus-per-node", "8", 3), ("-l", True, 4),
    ]  # fmt: skip
    assert (call.program, call.launcher) == ("pretrain_gpt.py", "python")


def test_variables_of_slurm_and_of_the_user() -> None:
    options = "--num_processes $((SLURM_NNODES * SLURM_GPUS_ON_NODE))"
    text = f"#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\naccelerate launch {options} train.py --x 1"
    assert invocation(text, "x", {}).launch[-1].value == "32"
    assert invocation(text, "x", {"SLURM_NNODES": "2"}).launch[-1].value == "16"
    assert invocation(text, "x", {}).launcher == "accelerate"


NAMES = st.from_regex(r"[a-z]{2,6}(-[a-z]{2,4})?", fullmatch=True)
VALUES = st.from_regex(r"[A-Za-z0-9_./]{1,8}", fullmatch=True)
OPTIONS = st.lists(st.tuples(NAMES, st.lists(VALUES, max_size=3)), min_size=1, max_size=8)


def seen(keys: tuple[Key, ...]) -> list[tuple[str, list[str]]]:
    return [(key.written[2:], [] if key.value is True else key.value if isinstance(key.value, list) else [key.value]) for key in keys]


@given(OPTIONS)
def test_law_all_ways_to_write_options_are_the_same(written: list[tuple[str, list[str]]]) -> None:
    rows = [" ".join([f"--{name}", *values]) for name, values in written]
    joined, lines = " ".join(rows), "\n".join(rows)
    continued = " \\\n  ".join(rows)
    texts = (
        f"torchrun --nproc_per_node 8 train.py {joined}",
        f"torchrun train.py \\\n  {continued}\n",
        f"ARGS=(\n{lines}\n)\ntorchrun train.py ${{ARGS[@]}}",
        f'A="{continued}"\nCMD="python train.py $A"\neval "$CMD"',
        lines,
    )
    for text in texts:
        assert seen(invocation(text, "x", {}).options) == written


@given(st.text(alphabet=st.sampled_from("ab=$(){}[]\"'`\\\n #;&|<>-+*123:/!~\t"), max_size=60))
def test_law_no_text_is_too_much(text: str) -> None:
    """Whatever stands in a script, reading it ends, with a scenario or with findings."""
    ShellScript(text)
    with suppress(InputError):
        import_config(f"{text}\ntorchrun train.py --num-layers 2", "x", Given())


def test_a_script_that_is_never_closed() -> None:
    for text in ('"', "'", "$(", "${", "(((", "if x", "case x in", "for x in 1; do", "A=(", "a <<EOF"):
        ShellScript(text)


def test_the_samples_are_read_without_notes() -> None:
    for path in (Path(__file__).parent.parent / "data" / "training").glob("*.sh"):
        assert ShellScript(path.read_text(encoding="utf-8")).notes == []


def test_a_script_says_which_arguments_its_sizes_follow_from() -> None:
    script = """#!/bin/bash
SIZE=$1
MICRO=${2}
if [ $SIZE = small ]; then LAYERS=2; elif [ $SIZE = large ]; then LAYERS=4; fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size 512 --num-attention-heads 8 --seq-length 128 \\
  --max-position-embeddings 128 --vocab-size 1000 --micro-batch-size $MICRO --global-batch-size 64
"""
    draft = import_config(script, "run.sh", Given("run", on="hgx-h100"))
    assert (draft.tree["model"], draft.tree["training"]["micro_batch"]) == ("FILL-IN", "FILL-IN")
    assert draft.tree["training"]["global_batch"] == 64
    assert '--arguments "SIZE MICRO" --set LAYERS=VALUE' in draft.yaml
    tree = import_config(script, "run.sh", Given("run", on="hgx-h100", variables={"1": "large", "2": "4"})).tree
    assert (tree["model"]["layers"], tree["training"]["micro_batch"]) == (4, 4)


def test_what_no_single_argument_decides_is_open_too() -> None:
    """Megatron-LM, tests/functional_tests/test_scripts/gpt3: one of two arguments makes it bf16, and without both it is fp16."""
    script = """#!/bin/bash
USE_TE=$1
TP_SIZE=$2
USE_CORE=${3}
TYPE=fp16
PROGRAM=pretrain_gpt.py
if [[ $USE_CORE -eq 1 ]]; then TYPE=bf16; PROGRAM=pretrain_gpt_core.py; fi
if [[ $USE_TE -eq 1 ]]; then TYPE=bf16; fi
torchrun --nproc_per_node 8 $PROGRAM --num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --${TYPE} \\
  --max-position-embeddings 1024 --vocab-size 50257 --micro-batch-size 4 --global-batch-size 32 --tensor-model-parallel-size $TP_SIZE
"""
    draft = import_config(script, "run.sh", Given("run", on="hgx-h100"))
    assert set(draft.to_fill) == {"training.precision", "parallel.tensor.size"}
    assert draft.questions == 1
    assert draft.tree["model"]["layers"] == 12
    tree = import_config(script, "run.sh", Given("run", on="hgx-h100", variables={"1": "0", "2": "2", "3": "0"})).tree
    assert (tree["training"]["precision"], tree["parallel"]["tensor"]["size"]) == ("fp16", 2)


def test_a_quotient_of_an_argument_is_no_number_of_the_script() -> None:
    """examples_deepspeed/curriculum_learning/ds_pretrain_gpt2.sh of Megatron-DeepSpeed: the batch of a GPU is one of two arguments."""
    script = """#!/bin/bash
BATCH=$1
WIDTH=$2
MICRO=$((BATCH / (128 / WIDTH)))
torchrun --nnodes 16 --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 \\
  --max-position-embeddings 128 --vocab-size 1000 --micro-batch-size $MICRO --global-batch-size $BATCH --tensor-model-parallel-size $WIDTH
"""
    draft = import_config(script, "run.sh", Given("run", on="hgx-h100"))
    assert (draft.tree["training"]["micro_batch"], draft.tree["training"]["global_batch"]) == ("FILL-IN", "FILL-IN")
    assert draft.tree["parallel"]["tensor"]["size"] == "FILL-IN"
    assert draft.tree["model"]["layers"] == 4
    assert draft.questions == 1
