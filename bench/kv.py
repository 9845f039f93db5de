"""`s3verbs bench kv`: the time to store and to load a model's KV cache through NIXL, over HTTP and over RDMA."""

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import platform
import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from s3verbs import __version__
from s3verbs.bench.endpoint import Access, Bucket, from_chain
from s3verbs.bench.errors import BenchError, CannotStart
from s3verbs.bench.jobs import job_for, local_socket
from s3verbs.bench.options import model_of
from s3verbs.bench.own_gateway import BUCKET, OwnGateway
from s3verbs.bench.plan import MAX_BUFFER, Context, readable_bytes, readable_tokens, slots_within, windows
from s3verbs.bench.progress import Progress
from s3verbs.bench.results import LOAD, STORE, Results, Sample, Series
from s3verbs.bench.table import tables
from s3verbs.bench.worker_process import Job, Worker

SECRET = frozenset({"access_key", "secret_key", "session_token"})
"""Parameters of the plugin that are nobody's business."""
RESERVE = 1 << 30
"""Bytes that stay free on the drive of the own gateway."""


def run(options: argparse.Namespace) -> int:
    """Measure, print the tables, write the files; the exit code. After a failure there is what was measured before."""
    results = Results(options.transports, options.recompute)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    code = 0
    try:
        try:
            _run(options, results)
        finally:
            if results.series:
                _write(results, options)
    except BenchError as error:
        sys.stderr.write(f"s3verbs: {error}\n")
        code = error.code
    finally:
        signal.signal(signal.SIGTERM, previous)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(options: argparse.Namespace, results: Results) -> None:
    if options.keep and options.endpoint is None:
        raise CannotStart("--keep: the own gateway goes away with its objects; it is for --endpoint")
    plan = Plan.of(options)
    _check_outputs(options)
    progress = Progress(quiet=options.quiet)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.end)
        if options.endpoint is None:
            gateway = stack.enter_context(OwnGateway(options.folder, options.serve))
            _expect_space(gateway.free_bytes, plan)
            access, bucket, socket = gateway.access, BUCKET, gateway.socket
        else:
            access, bucket = from_chain(options.endpoint, options.region), options.bucket
            socket = local_socket(access.url)
        store = Bucket(access, bucket)
        jobs = {
            name: job_for(options, name, access, bucket, socket, plan.slots, plan.object_bytes)
            for name in options.transports
        }
        prefix = f"s3verbs-bench/{os.urandom(4).hex()}/"
        stack.callback(_delete_rest, store, prefix, options.keep)
        workers = {name: stack.enter_context(Worker(job)) for name, job in jobs.items()}
        results.about = _about(options, plan, access, jobs, workers)
        progress.say(_headline(plan, results.about))
        bench = Bench(plan, workers, store, prefix, progress, keep=options.keep)
        if options.warm_up:
            bench.measure(plan.contexts[0], "warm-up", options.warm_up)
        for context in plan.contexts:
            for series in bench.measure(context, "", options.repeat):
                results.series.append(series)
                progress.measured(context, series)
        results.about["load_average_after"] = os.getloadavg()[0]
        if "rdma" in workers:
            results.about["library_says"] = list(workers["rdma"].library_lines)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is moved. Each transport has a buffer of `slots` objects."""

    model: str
    shape: dict[str, int]
    contexts: tuple[Context, ...]
    object_bytes: int
    slots: int

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Plan":
        """Raises CannotStart."""
        try:
            model = model_of(options)
            per_token = model.bytes_per_token(options.tp)
            object_bytes = model.object_bytes(options.chunk_size, options.tp)
        except ValueError as error:
            raise CannotStart(str(error)) from None
        contexts = tuple(Context(tokens, options.chunk_size, per_token) for tokens in options.contexts)
        memory, buffers = options.memory, len(options.transports)
        if isinstance(memory, float):
            memory = min(int(memory * _available()), MAX_BUFFER * buffers)
        slots = slots_within(memory, buffers, object_bytes, contexts[-1].objects)
        if not slots:
            raise CannotStart(
                f"--memory: {readable_bytes(memory)} do not hold {buffers} objects of {readable_bytes(object_bytes)}; "
                "give more, a smaller --chunk-size or a larger --tp"
            )
        shape = {
            "layers": model.layers,
            "kv_heads": model.kv_heads,
            "head_dim": model.head_dim,
            "dtype_bytes": model.dtype_bytes,
            "tp": options.tp,
            "chunk_tokens": options.chunk_size,
            "bytes_per_token": per_token,
        }
        return cls(model.name, shape, contexts, object_bytes, slots)


@dataclass(slots=True)
class Bench:
    """Moves whole caches. The transports take turns, so that a noisy minute hits all."""

    plan: Plan
    workers: dict[str, Worker]
    bucket: Bucket
    prefix: str
    progress: Progress
    keep: bool
    _salt: int = field(default=0, init=False)

    def measure(self, context: Context, note: str, repeat: int) -> list[Series]:
        """Store and load the cache of that context `repeat` times by each transport. Objects are new each time, and
        gone before the next ones come unless they are kept. Raises BenchError."""
        samples: dict[tuple[str, str], list[Sample]] = {}
        for number in range(repeat):
            order = list(self.workers)
            for transport in order if number % 2 == 0 else reversed(order):
                self._salt += 1
                prefix = f"{self.prefix}{transport}/{context.tokens}/{self._salt}/"
                for operation in (STORE, LOAD):
                    name = f"{note} {number + 1}/{repeat}".strip()
                    sample = self._move(transport, operation, context, prefix, name)
                    samples.setdefault((transport, operation), []).append(sample)
                if not self.keep:
                    self.bucket.delete(prefix)
        return [Series(context, *key, tuple(found)) for key, found in samples.items()]

    def _move(self, transport: str, operation: str, context: Context, prefix: str, name: str) -> Sample:
        seconds = cpu = 0.0
        done = 0
        for window in windows(context.objects, self.plan.slots):
            self.progress.moving(context, transport, operation, name, done)
            moved = self.workers[transport].move(operation, context, window, prefix, self._salt)
            seconds, cpu = seconds + moved.seconds, cpu + moved.cpu
            done += sum(context.size_of(number) for number in window)
        return Sample(seconds, cpu)


def _about(
    options: argparse.Namespace, plan: Plan, access: Access, jobs: dict[str, Job], workers: dict[str, Worker]
) -> dict[str, Any]:
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "s3verbs": __version__,
        "nixl": next(iter(workers.values())).nixl,
        "machine": f"{os.cpu_count()} CPUs, Linux {platform.release()}",
        "load_average_before": os.getloadavg()[0],
        "endpoint": "own gateway on loopback" if options.endpoint is None else access.url,
        "model": plan.model,
        **plan.shape,
        "object_bytes": plan.object_bytes,
        "buffer_bytes": plan.slots * plan.object_bytes,
        "repeat": options.repeat,
        "warm_up": options.warm_up,
        "parameters": {
            name: {key: value for key, value in job.parameters.items() if key not in SECRET}
            for name, job in jobs.items()
        },
        "register_seconds": {name: worker.register_seconds for name, worker in workers.items()},
    }


def _headline(plan: Plan, about: dict[str, Any]) -> str:
    split = f", one worker of {plan.shape['tp']}" if plan.shape["tp"] > 1 else ""
    return (
        f"{plan.model}{split}: {readable_bytes(plan.object_bytes)} an object of {plan.shape['chunk_tokens']} tokens; "
        f"{about['nixl']}, buffers of {readable_bytes(about['buffer_bytes'])}; {about['endpoint']}; {about['machine']}"
    )


def _delete_rest(store: Bucket, prefix: str, keep: bool) -> None:
    """Also after a failure; one that cannot be undone here must not hide it."""
    if keep:
        return
    with contextlib.suppress(BenchError):
        store.delete(prefix)


def _expect_space(free: int, plan: Plan) -> None:
    needed = plan.contexts[-1].total_bytes + RESERVE
    if free < needed:
        longest = readable_tokens(plan.contexts[-1].tokens)
        raise CannotStart(
            f"--folder: {longest} tokens need {readable_bytes(needed)} on the drive of the own gateway, "
            f"{readable_bytes(free)} are free; name another one, or shorter --contexts"
        )


def _check_outputs(options: argparse.Namespace) -> None:
    """Before a long run, not after it. Raises CannotStart."""
    for name in ("json", "plot"):
        path: Path | None = getattr(options, name)
        if path is not None and not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise CannotStart(f"--{name} {path}: cannot be written")
    if options.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise CannotStart(f"--plot needs matplotlib: {sys.executable} -m pip install 's3verbs[bench]'")


def _write(results: Results, options: argparse.Namespace) -> None:
    sys.stdout.write(tables(results))
    sys.stdout.flush()
    try:
        if options.json is not None:
            options.json.write_text(json.dumps(results.as_json(), indent=1) + "\n")
        if options.plot is not None:
            from s3verbs.bench.plot import draw

            draw(results, options.plot)
    except (OSError, ValueError) as error:
        raise BenchError(f"the results cannot be written: {error}") from None


def _available() -> int:
    """Bytes that the kernel thinks can be used without swapping."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if found is None:
        raise CannotStart("--memory: /proc/meminfo does not say what is available; give a size")
    return int(found[1]) * 1024
