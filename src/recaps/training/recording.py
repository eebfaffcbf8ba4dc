"""Training steps that are recorded once and replayed: a CUDA graph launches all operations of a step at once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from recaps.models.model import Model
from recaps.nn.noise import Noise

Tensors = dict[str, Tensor]
Work = Callable[[Tensors], Tensors]
Record = Callable[[Model, Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]

#: Ordinary steps of each kind before one is recorded. They allocate what lasts, such as the state of optimisers.
ORDINARY = 3


class Recorder:
    """Takes steps: the first of each kind as usual, all others by replaying a recording of the step."""

    def __init__(self, model: Model, work: Work, record: Record) -> None:
        self.model, self.work, self.record = model, work, record
        self.taken: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording] = {}
        self.failed = False

    def __call__(self, kind: Hashable, inputs: Tensors) -> Tensors:
        """Take a step of a kind (`Model.schedule`). Return its metrics."""
        self.taken[kind] += 1
        if self.taken[kind] <= ORDINARY or self.failed:
            return self.work(inputs)
        if kind not in self.recordings:
            try:
                self.recordings[kind] = Recording(self.model, self.work, inputs, self.record)
            except RuntimeError as error:
                self.failed = True
                why = str(error).split("\n")[0]
                print(f"training.graph: this step cannot be recorded ({why}); taking ordinary steps", file=sys.stderr)
                return self.work(inputs)
        return self.recordings[kind](inputs)


class Recording:
    """One step, which reads its inputs from the same memory and writes its metrics to the same memory each time."""

    def __init__(self, model: Model, work: Work, inputs: Tensors, record: Record) -> None:
        self.inputs = {name: values.clone() for name, values in inputs.items()}
        self.names: tuple[str, ...] = ()

        def step() -> Tensor:
            metrics = work(self.inputs)
            self.names = tuple(metrics)
            return torch.stack([value.float() for value in metrics.values()])

        self.replay, self.metrics = record(model, step)

    def __call__(self, inputs: Tensors) -> Tensors:
        for name, values in inputs.items():
            self.inputs[name].copy_(values)
        self.replay()
        return dict(zip(self.names, self.metrics.clone().unbind(), strict=True))


def cuda_graph(model: Model, step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record `step` as a CUDA graph, without running it. Return a function that replays it, and what it returns."""
    graph = torch.cuda.CUDAGraph()
    for noise in model.modules():
        for generator in noise.generators.values() if isinstance(noise, Noise) else ():
            graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        metrics = step()
    return graph.replay, metrics


#: How steps are recorded, by type of device.
RECORD: dict[str, Record] = {"cuda": cuda_graph}


def stepper(model: Model, work: Work, device: torch.device) -> Callable[[Hashable, Tensors], Tensors]:
    """Return a function that takes a step of a kind: recorded if the model, its training and the device allow it."""
    record = RECORD.get(device.type)
    if record is None or not model.training_options.graph or not model.recordable:
        return lambda kind, inputs: work(inputs)
    if device.type == "cuda":
        _prepare(model, device)
        return Recorder(model, _aside(work), record)
    return Recorder(model, work, record)


def _prepare(model: Model, device: torch.device) -> None:
    """Let the optimisers read their learning rates from the device, and keep their state there."""
    for optimizer in model.optimizers().values():
        for group in optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
            group.update({name: True for name in ("capturable", "fused") if name in group})


def _aside(work: Work) -> Work:
    """Return `work` on a stream of its own, as long as nothing is being recorded, as PyTorch asks for before that."""
    stream = torch.cuda.Stream()

    def aside(inputs: Tensors) -> Tensors:
        if torch.cuda.is_current_stream_capturing():
            return work(inputs)
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            metrics = work(inputs)
        current.wait_stream(stream)
        return metrics

    return aside
