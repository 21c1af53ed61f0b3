"""What `parsim.simulation.engine` must find, without any cleverness: a SimPy process per op.

Whatever progresses at a rate (a kernel, a flow) is a job of one fluid. When a job comes or goes, or a capacity changes, all have their
progress written down and every rate is worked out anew: a flow's by raising the rates of all until a cap or a link stops them.
"""

from __future__ import annotations

from collections import defaultdict
from math import fsum, inf, nan

import simpy

from parsim.parallel.groups import OFFLOAD, is_stream
from parsim.program.program import COMPUTE


class Job:
    """A kernel on a rank, or a flow over a path: `left` seconds or bytes."""

    def __init__(self, left, ended, *, rank=None, bound=0.0, path=None, cap=0.0, weight=1.0):
        self.left, self.ended, self.rank, self.bound = left, ended, rank, bound
        self.path, self.cap, self.weight = path, cap, weight
        self.rate = 0.0


class Reference:
    """One run of a program; `start`, `end` [s] by op, `carried` [B] and `saturated` [s] by link."""

    def __init__(self, program, fabric, interference=None, capacity_changes=(), background=()):
        self.env = simpy.Environment()
        self.program, self.fabric, self.interference = program, fabric, interference
        self.jobs, self.loads, self.capacities = [], defaultdict(list), {}
        self.carried, self.saturated = defaultdict(float), defaultdict(float)
        self.now, self.stirred = 0.0, self.env.event()
        count = len(program.ops)
        self.start, self.end = [nan] * count, [nan] * count
        done = [self.env.event() for _ in range(count)]
        blockers = [[] for _ in range(count)]
        for op in program.ops:
            for other in op.after:
                blockers[other.index].append(done[op.index])
        for change in capacity_changes:
            self.env.process(self.change(*change))
        for stream in background:
            self.env.process(self.stream(stream))
        for op in program.ops:
            self.env.process(self.op(op, blockers[op.index], done[op.index]))
        self.env.process(self.flow())
        self.env.run(until=self.env.all_of(done))
        self.write_down()

    # -- processes ------------------------------------------------------------------------------------------------

    def op(self, op, blockers, done):
        yield self.env.all_of(blockers)
        self.start[op.index] = self.env.now
        if op.collective is not None:
            yield from self.transfer(op)
        elif op.lanes and op.lanes[0].name == COMPUTE and op.duration:
            job = Job(op.duration, self.env.event(), rank=op.lanes[0].rank, bound=self.program.memory_bound.get(op.name, 0.0))
            self.add(job)
            yield job.ended
        else:
            beside = self.interference is not None and op.duration and op.lanes and is_stream(op.lanes[0].name)
            if beside:  # kernels on a stream of their own load the device, and nothing slows them
                load, loads = self.interference.kernel_load(), self.loads[op.lanes[0].rank]
                loads.append(load)
                self.stir()
            yield self.env.timeout(op.duration)
            if beside:
                loads.remove(load)
                self.stir()
        self.end[op.index] = self.env.now
        done.succeed()

    def transfer(self, op):
        cost = self.fabric.cost(op.collective)
        held = {lane.rank for lane in op.lanes if lane.name == COMPUTE}
        beside = {} if op.collective.axis == OFFLOAD else {lane.rank: lane for lane in reversed(op.lanes) if lane.rank not in held}
        load = None if self.interference is None else self.interference.load(op.collective)
        for rank in beside:
            self.loads[rank].append(load)
        self.stir()
        yield self.env.timeout(op.duration + cost.latency)
        moving = [flow for flow in cost.flows if flow.volume]
        jobs = []
        for flow in moving:
            path = defaultdict(float)
            for link, coefficient in flow.path:
                path[link] += coefficient
            if self.interference is not None and self.interference.communication_rate(1.0) < 1:
                path.update({lane: 1.0 / (flow.cap * len(moving)) for lane in beside.values()})  # a link for what kernels leave it
            jobs.append(Job(flow.volume, self.env.event(), path=path, cap=flow.cap, weight=flow.weight))
            self.add(jobs[-1])
        yield self.env.all_of([job.ended for job in jobs])
        for rank in beside:
            self.loads[rank].remove(load)
        self.stir()

    def change(self, time, link, capacity):
        yield self.env.timeout(time)
        self.write_down()
        self.capacities[link] = capacity
        self.stir()

    def stream(self, stream):
        if stream.volume < inf:
            yield self.env.timeout(stream.begin)
        while True:
            begun = self.env.now
            job = Job(stream.volume, self.env.event(), path=dict(stream.path), cap=stream.cap)
            self.add(job)
            yield job.ended
            if not stream.every:
                return
            yield self.env.timeout(max(0.0, begun + stream.every - self.env.now))

    # -- the fluid ------------------------------------------------------------------------------------------------

    def add(self, job):
        self.jobs.append(job)
        self.stir()

    def stir(self):
        if not self.stirred.triggered:
            self.stirred.succeed()

    def flow(self):
        """Let jobs go on until the next one ends, or until somebody stirs."""
        while True:
            yield self.env.timeout(0)  # all that happens now has happened
            self.stirred = self.env.event()
            self.write_down()
            self.set_rates()
            first = min((job.left / job.rate for job in self.jobs if job.rate), default=inf)
            ending = [job for job in self.jobs if job.rate and job.left / job.rate <= first + 1e-12 * (self.env.now + first)]
            wait = [self.env.timeout(first)] if first < inf else []
            yield self.env.any_of([self.stirred, *wait])
            if wait and wait[0].processed:
                self.write_down()
                for job in ending:
                    self.jobs.remove(job)
                    job.ended.succeed()

    def write_down(self):
        """The progress of all jobs since it was last written down."""
        passed, self.now = self.env.now - self.now, self.env.now
        load = defaultdict(list)
        for job in self.jobs:
            job.left -= job.rate * passed
            for link, coefficient in (job.path or {}).items():
                load[link].append(coefficient * job.rate)
        for link, rates in load.items():
            self.carried[link] += fsum(rates) * passed
            if fsum(rates) >= 0.999 * self.capacity(link) > 0:
                self.saturated[link] += passed

    def capacity(self, link):
        if isinstance(link, int):
            return self.capacities.get(link, self.fabric.capacity(link))
        kernels = [job.bound for job in self.jobs if job.rank == link.rank and job.path is None]
        return self.interference.communication_rate(kernels[0]) if kernels else 1.0

    def set_rates(self):
        rising = []
        for job in self.jobs:
            if job.path is None:
                loads = tuple(self.loads[job.rank])
                job.rate = 1.0 if self.interference is None else self.interference.compute_rate(loads, job.bound)
            else:
                job.rate = 0.0
                rising.append(job)
        room = {link: self.capacity(link) for job in rising for link in job.path}
        while rising:
            asked = {link: fsum(job.weight * job.path[link] for job in rising if link in job.path) for link in room}
            steps = [(job.cap - job.rate) / job.weight for job in rising] + [room[link] / total for link, total in asked.items() if total]
            step = max(0.0, min(steps))
            for job in rising:
                job.rate += step * job.weight
                for link, coefficient in job.path.items():
                    room[link] -= step * job.weight * coefficient
            full = {link for link in room if room[link] <= 1e-12 * self.capacity(link)}
            rising = [job for job in rising if job.rate < job.cap * (1 - 1e-12) and full.isdisjoint(job.path)]
