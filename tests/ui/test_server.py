"""The server from outside: who is let in, what it answers, and what is left when somebody leaves."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from html.parser import HTMLParser
from statistics import median

import pytest
from served_planner import TINY, Served

from parsim import load, simulate
from parsim.study.planner.state import tree_of, whole
from parsim.ui import guard as guarding


@pytest.fixture(name="served", scope="module")
def served_fixture():
    served = Served()
    yield served
    served.end()


ASKED = {"tab": "one", "number": 1, "state": {}}


def test_only_this_machine_and_this_page_may_ask(served):
    """In the order of the checks: a request that fails several is refused by the first."""
    port = served.guard.port
    refused = [
        (421, served.headers(host=f"evil.example:{port}", origin="http://evil.example")),  # DNS rebinding
        (421, served.headers(host="127.0.0.1")),
        (421, served.headers(host=f"127.0.0.1:{port + 1}")),
        (421, served.headers(host=f"127.0.0.1:{port}.evil.example")),
        (421, served.headers(host=None)),
        (403, served.headers(origin="http://evil.example", x_parsim_token=None)),
        (403, served.headers(origin="null")),
        (403, served.headers(origin=None)),
        (403, served.headers(origin=f"http://localhost:{port}")),
        (403, served.headers(origin=f"http://127.0.0.1:{port + 1}")),
        (401, served.headers(x_parsim_token=None)),
        (401, served.headers(x_parsim_token="x" * 43)),
        (401, served.headers(x_parsim_token=served.guard.token[:-1])),
        (415, served.headers(content_type="text/plain")),  # what a form of another site could send without asking first
    ]
    for status, headers in refused:
        found = served.ask("/api/live", ASKED, headers=headers)[0]
        assert found == status or (headers.get("host") is None and found == 400), headers
    assert served.ask("/api/live", method="GET")[0] == 405
    assert served.ask("/", {}, method="POST")[0] == 405
    assert served.ask("/", method="GET", headers={"host": served.host, "origin": "http://evil.example"})[0] == 403
    assert served.ask("/api/live", ASKED)[0] == 200


def test_large_and_slow_bodies_are_not_waited_for(served, monkeypatch):
    status, _, text = served.ask("/api/live", b"{" + b" " * (257 * 1024))
    assert (status, text) == (413, b"at most 262,144 bytes")
    assert served.ask("/api/live", b"{}", headers=served.headers(content_length="-1"))[0] in (400, 411)
    monkeypatch.setattr(guarding, "PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", served.guard.port), timeout=30) as slow:
        lines = [f"{name}: {value}" for name, value in served.headers(content_length="1000").items()]
        slow.sendall("\r\n".join(["POST /api/live HTTP/1.1", *lines, "", "{"]).encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 408")
    with socket.create_connection(("127.0.0.1", served.guard.port), timeout=30) as chunked:
        lines = [f"{name}: {value}" for name, value in served.headers(transfer_encoding="chunked").items()]
        chunked.sendall("\r\n".join(["POST /api/live HTTP/1.1", *lines, "", "5", "{    ", ""]).encode())
        assert chunked.recv(100).startswith(b"HTTP/1.1 411")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff", {}, {"tab": "one", "number": 1}, ASKED | {"more": 1}, ASKED | {"tab": 1},
     ASKED | {"number": True}, ASKED | {"state": []}],
)  # fmt: skip
def test_bodies_that_are_no_question(served, body):
    assert served.ask("/api/live", body)[0] == 400


@pytest.mark.benchmark
def test_answers_to_sixteen_changes(served, capsys):
    """The aim is a tenth of a second."""
    changes = [
        {"training.micro_batch": 2}, {"training.micro_batch": 4}, {"training.recompute": "full"}, {"training.recompute": "selective"},
        {"training.global_batch": 512}, {"training.sequence_length": 4096}, {"training.precision.preset": "fp16"},
        {"training.optimizer.name": "sgd"}, {"parallel.tensor.size": 4}, {"parallel.pipeline.size": 8},
        {"parallel.pipeline.schedule": "gpipe"},
        {"parallel.context.size": 2}, {"parallel.data.strategy": "fsdp"}, {"cluster.nodes": 16}, {"cluster.memory_reserve": "8 GiB"},
        {"cluster.topology": "hgx-h200"},
    ]  # fmt: skip
    number, usual = 0, {}
    for change in changes:
        times = []
        for _ in range(5):
            for state in ({}, change):
                number += 1
                began = time.perf_counter()
                answer = served.answer("live", tab="quick", number=number, state=state)
                times.append(time.perf_counter() - began)
                assert answer["says"] in ("at least", "does not fit"), (change, answer)
        usual[str(change)] = median(times[1::2])
    slowest = max(usual, key=usual.__getitem__)
    with capsys.disabled():
        median_s, slowest_s = median(usual.values()), usual[slowest]
        sys.stdout.write(f"\nanswers to {len(usual)} changes: median {median_s:.3f} s, slowest {slowest_s:.3f} s: {slowest}\n")


SECRETS = ("model", "cluster.topology", "software.profile", "parallel.pipeline.schedule", "parallel.data.strategy", "economics.failures",
           "extends", "variability.profile", "parallel.expert.imbalance", "cluster.set", "cluster.nodes", "model.base")  # fmt: skip


def test_no_state_reads_a_file_or_runs_code(served, tmp_path, monkeypatch):
    """Every key whose value may be a path elsewhere; the server and its workers run in this directory."""
    (tmp_path / "secret.yaml").write_text("name: password-123\nfamily: gpt2\n")
    (tmp_path / "secret.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    values = [f"{tmp_path}/secret.yaml", f"{tmp_path}/secret.py:X", "/etc/hostname", {"histogram": f"{tmp_path}/secret.yaml"},
              {"node": {"device": f"{tmp_path}/secret.yaml"}}, [{"use": f"{tmp_path}/secret.yaml"}]]  # fmt: skip
    number = 10
    for key in SECRETS:
        for value in values:
            number += 1
            answer = served.answer("live", tab="secrets", number=number, state={key: value})
            assert answer.get("says") == "impossible" or answer.get("kind") == "error", (key, value)
            assert "password" not in json.dumps(answer)
    script = (
        f"torchrun pretrain_gpt.py --deepspeed --deepspeed_config {tmp_path}/secret.yaml --num-layers 2 --yaml-cfg {tmp_path}/secret.yaml"
    )
    assert "password" not in json.dumps(served.answer("drop", name="run.sh", text=script))
    assert not (tmp_path / "ran").exists()


def test_hostile_names_are_text(served):
    name = "</script><script>alert(1)</script>"
    answer = served.answer("live", tab="names", number=1, state={"model": name, "name": name})
    assert answer["says"] == "impossible"
    assert name in answer["findings"][0]["message"] or name in str(answer["findings"][0]["value"])
    _, headers, page = served.ask("/", method="GET")
    assert b"<script>alert" not in page
    path = served.answer("report", state=TINY | {"name": name})["path"]
    status, headers, html = served.ask(path, method="GET")
    assert status == 200
    assert "sandbox allow-scripts" in headers["content-security-policy"]
    assert name.encode() not in html
    assert served.ask("/report/nothing", method="GET")[0] == 404


def test_a_model_of_a_million_layers_is_refused_in_time(served):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 10**6,
              "num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}  # fmt: skip
    dropped = served.answer("drop", name="config.json", text=json.dumps(config))
    assert dropped["state"]["model"] == config
    answer = served.answer("live", tab="large", number=1, state=dropped["state"])
    assert answer["says"] == "impossible"


def test_the_page_carries_its_own_policy_and_nothing_foreign(served):
    status, headers, raw = served.ask("/", method="GET")
    page = raw.decode()
    assert status == 200
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", headers["content-security-policy"])[1]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert {headers[name] for name in ("x-content-type-options", "cache-control", "cross-origin-resource-policy")} == {
        "nosniff",
        "no-store",
        "same-origin",
    }
    assert served.ask("/", method="GET")[2].decode().find(nonce) < 0

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            named = dict(attrs)
            assert tag not in ("iframe", "img", "base")
            assert "src" not in named
            assert "style" not in named
            assert not any(name.startswith("on") for name in named)
            if tag in ("script", "style"):
                assert named["nonce"] == nonce

    Tags().feed(page)
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    assert served.guard.token not in page


def test_a_key_opens_the_page_once(served):
    address = served.guard.address.partition(served.host)[2]
    assert served.guard.token in served.ask(address, method="GET")[2].decode()
    assert served.guard.token not in served.ask(address, method="GET")[2].decode()
    assert served.announced[-1] == served.guard.address != address


def test_the_newest_of_a_tab_counts_and_tabs_do_not_disturb_each_other(served):
    assert served.answer("live", tab="a", number=7, state=TINY)["stage"] == "bound"
    assert served.answer("live", tab="a", number=6, state=TINY) == {"stale": True}
    assert served.answer("live", tab="b", number=1, state=TINY)["stage"] == "bound"
    assert served.answer("choices", tab="a", number=6, state=TINY)["options"]
    assert served.lines("exact", tab="a", number=9, state=TINY)[-1]["answer"]["stage"] == "simulated"
    assert served.lines("exact", tab="a", number=8, state=TINY) == [{"kind": "stale"}]


def test_the_exact_answer_is_that_of_the_file_it_offers(served):
    choices = served.answer("choices", tab="c", number=1, state=TINY)
    answer = served.lines("exact", tab="c", number=1, state=TINY)[-1]["answer"]
    report = simulate(load(choices["yaml"], trusted=False))
    assert (answer["step_time_s"], answer["peak_bytes"], answer["mfu"]) == (report.step_time, report.peak_memory, report.mfu)
    assert choices["command"] is None  # a model of one's own does not fit into a command
    assert served.answer("drop", name="scenario.yaml", text=choices["yaml"])["state"] == TINY
    command = served.answer("choices", tab="c", number=2, state={"cluster.nodes": 16})["command"]
    assert command == "parsim run llama-3-70b-64x-h100 cluster.nodes=16"


def test_a_plan_that_does_not_fit_comes_with_some_that_do(served):
    state = TINY | {
        "model": {"base": "llama-3-8b", "layers": 16},
        "training.micro_batch": 16,
        "training.global_batch": 64,
        "training.sequence_length": 8192,
    }
    *_, last = [one for one in served.lines("exact", tab="n", number=1, state=state) if one["kind"] == "answer"]
    assert last["answer"]["says"] == "does not fit"
    near = [one for one in served.lines("exact", tab="n", number=2, state=state) if one["kind"] == "fits"]
    assert near
    for one in near:
        assert simulate(load(tree_of(whole(state | one["changes"])))).fits


def test_a_search_goes_line_by_line_and_ends_with_its_reader(served):
    def searching():
        return [worker.number for worker in served.planner.searches]

    connection = socket.create_connection(("127.0.0.1", served.guard.port), timeout=60)
    body = json.dumps({"state": TINY}).encode()
    lines = [f"{name}: {value}" for name, value in served.headers(content_length=str(len(body))).items()]
    connection.sendall("\r\n".join(["POST /api/search HTTP/1.1", *lines, "", ""]).encode() + body)
    text = b""
    while b'"kind": "' not in text:
        text += connection.recv(4096)
    (process,) = searching()
    connection.close()
    for _ in range(600):
        if not searching():
            break
        time.sleep(0.05)
    assert not searching()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_search_proves_its_best(served):
    found = served.lines(
        "search", state=TINY | {"cluster.gpus": 2, "training.global_batch": 2, "model": {"base": "llama-3-8b", "layers": 1}}
    )
    assert found[-1]["kind"] == "end"
    assert found[-1]["proven"] is True
    better = [one for one in found if one["kind"] == "better"]
    report = simulate(load(tree_of(whole(better[-1]["state"]))))
    assert report.step_time == pytest.approx(better[-1]["step_time_s"], rel=1e-9)


def test_a_worker_that_is_killed_is_replaced(served):
    served.answer("live", tab="k", number=1, state=TINY)
    (process,) = served.planner.desk("live").processes
    os.kill(process, 9)
    answers = [served.answer("live", tab="k", number=number, state=TINY) for number in (2, 3)]
    assert answers[-1]["stage"] == "bound"
