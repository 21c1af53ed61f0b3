"""How tokens reach their experts: messages, kernels and memory by dispatcher."""

import copy

import pytest
from test_experts import SMALL, exchanged, peak, scenario

from parsim import load, simulate
from parsim.errors import ParsimError
from parsim.kernel import Memory
from parsim.model.exchange import PERMUTED, ExpertExchange, token_bytes
from parsim.model.workload import Workload
from parsim.routing import Routing

WIDE = {"base": "mixtral-8x7b", "layers": 1, "hidden": 7168, "mlp": 256, "vocabulary": 512, "experts": {"count": 256, "top_k": 8}}


def wide(nodes=1, **expert):
    """4,096 tokens of hidden size 7,168 on every rank, eight of 256 experts each, one layer and micro-batch."""
    tree = scenario({"nodes": nodes}, expert=expert)
    tree["model"] = copy.deepcopy(WIDE)
    tree["training"] |= {"sequence_length": 4096, "gradient_accumulation": 1}
    return tree


class TestMessages:
    def test_all_to_all_of_copies(self):
        rows = exchanged(simulate(wide(size=8)))
        assert rows == {("all_to_all", 8, 469_762_048): 4, ("all_to_all", 8, 4 * 8 * 4096): 2}
        assert 469_762_048 * 7 // 8 == 411_041_792

    def test_tokens_once(self):
        assert exchanged(simulate(wide(size=8, dispatcher="deepep"))) == {("token_exchange", 8, 4096 * 14336): 4}

    def test_hybridep_gathers_the_map_before(self):
        """In forward: a byte for every one of the experts and tokens of all ranks."""
        experts = 256
        rows = exchanged(simulate(wide(size=8, dispatcher="hybridep")))
        assert rows == {("token_exchange", 8, 4096 * 14336): 4, ("all_gather", 8, 8 * 4096 * experts): 1}

    def test_fp8_towards_the_experts(self):
        """Tokens in forward and gradients in backward; both come back in 16 bit."""
        rows = exchanged(simulate(wide(size=8, dispatch_dtype="fp8")))
        assert rows == {("all_to_all", 8, 242_221_056): 2, ("all_to_all", 8, 469_762_048): 2, ("all_to_all", 8, 4 * 8 * 4096): 2}
        both = exchanged(simulate(wide(size=8, dispatch_dtype="fp8", combine_dtype="fp8")))
        assert both[("all_to_all", 8, 242_221_056)] == 4

    def test_all_gather_of_all_tokens(self):
        """128 tokens of hidden size 256 on two tensor ranks, with the weights and the map of all eight experts."""
        tree = scenario(tensor={"size": 2, "sequence_parallel": True}, expert={"size": 4, "tensor": 2, "dispatcher": "allgather"})
        tree["training"]["gradient_accumulation"] = 1
        tokens, layers = 8 * 64, 2
        assert exchanged(simulate(tree)) == {
            ("all_gather", 8, 512 * tokens): 2 * layers,
            ("reduce_scatter", 8, 512 * tokens): 2 * layers,
            ("all_gather", 8, 4 * 8 * tokens): layers,
            ("reduce_scatter", 8, 4 * 8 * tokens): layers,
            ("all_gather", 8, 8 * tokens): layers,
        }

    def test_the_busiest_rank(self):
        expert = {"size": 8, "dispatcher": "hybridep", "imbalance": 1.5}
        assert set(exchanged(simulate(scenario(expert=expert)))) == {("token_exchange", 8, 192 * 512), ("all_gather", 8, 8 * 8 * 128)}


class TestKernels:
    """A thousand tokens of hidden size 512 to two of eight experts on four ranks, 16 bit."""

    EXPERTS = Routing(8, 2, 4)
    ROW = 1024

    def ways(self, dispatcher, *, summed=False, **more):
        exchange = ExpertExchange(Workload(1000, expert=4, dispatcher=dispatcher, **more), 512, self.EXPERTS, summed)
        return exchange.leaving, exchange.returning

    def test_all_to_all(self):
        leaving, returning = self.ways("alltoall")
        copies, sorting = Memory(2 * 2000 * self.ROW), Memory(2 * 2000 * self.ROW)
        assert (leaving.before, leaving.behind) == ((copies,), (sorting,))
        assert (returning.before, returning.behind) == ((sorting,), (copies,))
        assert leaving.buffers == 2 * 2000 * self.ROW

    def test_deepep_orders_what_arrived(self):
        leaving, returning = self.ways("deepep")
        arrived = round(1000 * self.EXPERTS.visited())
        assert arrived == 1857
        assert leaving.kernels == leaving.behind == returning.before == returning.kernels == (Memory((1857 + 2000) * self.ROW),)

    def test_hybridep_orders_what_arrived_in_its_buffer(self):
        own, other = self.ways("hybridep"), self.ways("deepep")
        as_long_as = (Memory(PERMUTED * (1857 + 2000) * self.ROW),)
        assert [way.kernels for way in own] == [as_long_as, as_long_as]
        assert [way.kernels for way in other] == [(Memory((1857 + 2000) * self.ROW),)] * 2
        assert [bool(way.before) for way in own] == [bool(way.before) for way in other]
        assert [way.buffers for way in other] == [1857 * self.ROW, 1857 * self.ROW]
        assert [way.buffers for way in own] == [0, 0]

    def test_all_gather(self):
        leaving, returning = self.ways("allgather", summed=True)
        assert leaving.behind == (Memory(2 * 2000 * self.ROW),)
        assert returning.before == (Memory((2000 + 4000) * self.ROW),)
        assert leaving.buffers == returning.buffers == 4000 * self.ROW

    @pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "deepep", "hybridep"])
    def test_casts(self, dispatcher):
        """Own tokens before the exchange, all rows of the experts behind it."""
        plain, cast = (self.ways(dispatcher, dispatch_fp8=fp8)[0] for fp8 in (False, True))
        wire = 512 + 4 * 4
        assert token_bytes(512, Workload(1), fp8=True) == wire
        assert cast.before[0] == Memory(1000 * (self.ROW + wire))
        assert cast.behind[-1] == Memory(2000 * (self.ROW + wire))
        moved = sum(kernel.bytes for kernel in (*cast.before[1:], *cast.behind[:-1]))
        assert moved == sum(kernel.bytes for kernel in plain.kernels) / self.ROW * wire


class TestSteps:
    @pytest.mark.parametrize("dispatcher", ["allgather", "deepep", "hybridep"])
    @pytest.mark.parametrize(("t", "p", "ep", "etp"), [(1, 1, 8, 2), (2, 2, 4, 1)])
    def test_folded_is_unfolded(self, dispatcher, t, p, ep, etp):
        expert = {"size": ep, "tensor": etp, "dispatcher": dispatcher, "dispatch_dtype": "fp8"}
        tree = scenario(tensor={"size": t, "sequence_parallel": t > 1}, pipeline={"size": p}, expert=expert)
        folded, whole = simulate(tree), simulate(tree, unfolded=True)
        assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
        assert peak(folded) == peak(whole)

    def test_beside_another_job_on_one_nic(self):
        """One of the two groups, which span two machines each, meets a stream."""
        tree = scenario({"nodes": 4, "background": [{"from": "gpu3", "to": "gpu11", "rate": "30 GB/s"}]}, expert={"size": 8, "tensor": 2})
        tree["training"]["sequence_length"] = 1024
        tree["parallel"]["expert"]["dispatcher"] = "deepep"
        folded, whole = simulate(tree), simulate(tree, unfolded=True)
        assert folded.step_time == pytest.approx(whole.step_time, rel=1e-9)
        assert folded.breakdown["expert_comm"] == pytest.approx(whole.breakdown["expert_comm"], rel=1e-9)

    @pytest.mark.parametrize(("ep", "factor"), [(64, 2.0), (8, 1.0)])
    def test_half_as_fast_nics(self, ep, factor):
        tree = wide(8, size=ep, dispatcher="deepep")
        tree["parallel"]["data"] = {"strategy": "ddp", "overlap_reduce": False}
        slow = copy.deepcopy(tree)
        slow["cluster"]["set"] = {"links": {"ib-ndr": {"line_rate": "200 Gb/s"}}}
        counts = 4 * (96e-6 if ep > 8 else 69e-6)  # before the bytes of each of the four exchanges
        before, after = (simulate(one).breakdown["expert_comm"] - counts for one in (tree, slow))
        assert after == pytest.approx(factor * before, rel=1e-6)

    def test_limited_routing_visits_fewer_machines(self):
        tree = wide(8, size=64, dispatcher="deepep")
        limited = copy.deepcopy(tree)
        limited["model"]["experts"] |= {"groups": 8, "groups_kept": 4}
        free, kept = (simulate(one).breakdown["expert_comm"] - 4 * 96e-6 for one in (tree, limited))
        assert kept / free == pytest.approx(3.954 / 5.2947, rel=0.003)

    def test_deepep_has_buffers_of_its_own(self):
        plain, own = (simulate(wide(size=8, dispatcher=name)).measured.memory.devices[0].at_peak for name in ("hybridep", "deepep"))
        assert own["communicators"] - plain["communicators"] == 335_709_824

    def test_auto_is_all_to_all(self):
        assert (
            simulate(scenario(expert={"size": 8})).step_time == simulate(scenario(expert={"size": 8, "dispatcher": "alltoall"})).step_time
        )


@pytest.mark.parametrize(
    ("expert", "text", "path"),
    [
        ({"size": 8, "dispatcher": "deepep", "capacity_factor": 1.0, "pad_to_capacity": True}, "does not pad", "pad_to_capacity"),
        ({"size": 4, "tensor": 3, "dispatcher": "deepep"}, "whole machines of 8: not 12", "size"),
        ({"size": 8, "sms": 16}, "chooses its multiprocessors itself", "sms"),
        ({"size": 8, "dispatcher": "hybridep", "combine_dtype": "fp8"}, "sums results", "combine_dtype"),
        ({"size": 4, "tensor": 2, "combine_dtype": "fp8"}, "reduce-scatter over expert tensor ranks", "combine_dtype"),
    ],
)
def test_what_does_not_go(expert, text, path):
    with pytest.raises(ParsimError) as caught:
        simulate(scenario({"nodes": 3} if expert.get("tensor") == 3 else None, expert=expert))
    assert [f for f in caught.value.findings if f.path == f"parallel.expert.{path}" and text in f.message]


@pytest.mark.parametrize(
    ("groups", "kept", "text"),
    [(3, 2, "count / groups = 8 / 3 is not whole"), (4, 5, "groups_kept 5 <= groups 4"), (8, 1, "1 experts, fewer than top_k 2")],
)
def test_groups_that_do_not_go(groups, kept, text):
    tree = copy.deepcopy(SMALL)
    tree["model"]["experts"] = {"groups": groups, "groups_kept": kept}
    with pytest.raises(ParsimError) as caught:
        simulate(load(tree))
    assert text in str(caught.value)
