# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib>=3.8", "monarch-core", "numpy>=1.26", "scikit-learn>=1.4"]
# [tool.uv.sources]
# monarch-core = { path = "../packages/monarch-core" }
# ///
"""Data-parallel training on real images: scikit-learn's 1,797 handwritten digits, a small neural network in plain NumPy.

    python digits.py [--quick] [--out FILE] [--dashboard]
    uv run examples/digits.py              in a checkout, with Rust: uv brings everything else

A mesh of four workers, each with a quarter of the training images. At every step each worker computes the gradient of its part of the
batch, the client averages the four, and all workers apply the average, so that their parameters stay the same bit for bit. A mesh of two
data loaders shuffles, augments and batches the images and hands them to the workers, one epoch ahead of the training. An evaluator
measures the accuracy on images that were held out, while the training goes on.

At the end the same algorithm runs in this process alone. Exits with 1 if the two disagree or if the accuracy is below 95 %.

`--dashboard` (monarch-telemetry with its extra `http`) shows all of this in a browser while it runs, and afterwards until Enter.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from monarch.actor import Actor, current_rank, endpoint, this_host

WORKERS = 4
LOADERS = 2
HELD_OUT = 360  # a fifth of the images
BATCH = 30  # images per worker and step
HIDDEN = 64
SHIFTED = 0.1  # share of the images that the loaders move by a pixel, in each direction
LEARNING_RATE = 0.25
MOMENTUM = 0.9
SEED = 7
SHARD = -(-(1797 - HELD_OUT) // WORKERS)
STEPS = -(-SHARD // BATCH)  # per epoch

Array = NDArray[np.float64]


class Images(NamedTuple):
    """Pixels `(n, 64)` from 0 to 1, and the digits `(n,)` they show."""

    pixels: Array
    digits: NDArray[np.int64]

    def take(self, which: NDArray[np.int64] | slice) -> Images:
        return Images(self.pixels[which], self.digits[which])


class Gradient(NamedTuple):
    """Sums over `size` images, not means: parts of different sizes then add up exactly as one batch."""

    layers: list[Array]
    loss: float
    size: int


class Model:
    """64 pixels, one hidden layer, 10 digits; trained by gradient descent with momentum."""

    def __init__(self) -> None:
        rng = np.random.default_rng(SEED)
        self.layers: list[Array] = [
            rng.normal(0, 64**-0.5, (64, HIDDEN)),
            np.zeros(HIDDEN),
            rng.normal(0, HIDDEN**-0.5, (HIDDEN, 10)),
            np.zeros(10),
        ]
        self.velocity = [np.zeros_like(layer) for layer in self.layers]

    def predict(self, pixels: Array) -> tuple[Array, Array]:
        """The hidden layer, and the probabilities `(n, 10)` of the digits."""
        w1, b1, w2, b2 = self.layers
        hidden = np.tanh(pixels @ w1 + b1)
        scores = hidden @ w2 + b2
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, odds / odds.sum(axis=1, keepdims=True)

    def gradient(self, images: Images) -> Gradient:
        hidden, probabilities = self.predict(images.pixels)
        count = len(images.digits)
        loss = -np.log(probabilities[np.arange(count), images.digits]).sum()
        error = probabilities - np.eye(10)[images.digits]
        back = (error @ self.layers[2].T) * (1 - hidden**2)
        return Gradient([images.pixels.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)], float(loss), count)

    def apply(self, mean: list[Array]) -> None:
        for layer, velocity, slope in zip(self.layers, self.velocity, mean, strict=True):
            velocity *= MOMENTUM
            velocity -= LEARNING_RATE * slope
            layer += velocity

    def score(self, images: Images) -> tuple[float, int]:
        """Mean loss, and how many of the images were read correctly."""
        _, probabilities = self.predict(images.pixels)
        loss = -np.log(probabilities[np.arange(len(images.digits)), images.digits]).mean()
        return float(loss), int((probabilities.argmax(axis=1) == images.digits).sum())


def load() -> tuple[Images, Images]:
    """The images to train on, and those held out; always split in the same way."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(digits))
    images = Images(pixels / 16.0, digits).take(order)
    return images.take(slice(HELD_OUT, None)), images.take(slice(HELD_OUT))


def batches(train: Images, worker: int, epoch: int) -> list[Images]:
    """The images of one worker in one epoch: its own images in a new order, some moved by a pixel, in `STEPS` batches."""
    rng = np.random.default_rng([SEED, worker, epoch])
    shard = train.take(slice(worker, None, WORKERS))
    order = rng.permutation(len(shard.digits))
    shard = shard.take(order)
    down, right = 1 + rng.choice([-1, 0, 1], size=(2, len(order), 1, 1), p=[SHIFTED / 2, 1 - SHIFTED, SHIFTED / 2])
    padded = np.pad(shard.pixels.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    rows, columns = np.arange(8).reshape(1, 8, 1), np.arange(8).reshape(1, 1, 8)
    moved = padded[np.arange(len(order)).reshape(-1, 1, 1), rows + down, columns + right].reshape(-1, 64)
    seen = Images(moved, shard.digits)
    return [seen.take(part) for part in np.array_split(np.arange(len(order)), STEPS)]


def average(parts: Iterable[Gradient]) -> tuple[list[Array], float]:
    """Mean gradient and mean loss of a whole batch, from its parts."""
    parts = list(parts)
    size = sum(part.size for part in parts)
    layers = [np.sum(same, axis=0) / size for same in zip(*(part.layers for part in parts), strict=True)]
    return layers, sum(part.loss for part in parts) / size


class Worker(Actor):
    """Holds a copy of the model and the batches of its shard."""

    def __init__(self) -> None:
        self.model = Model()
        self.epochs: dict[int, list[Images]] = {}

    @endpoint
    def receive(self, epoch: int, shard: list[Images]) -> None:
        self.epochs[epoch] = shard

    @endpoint
    def gradient(self, epoch: int, step: int) -> Gradient:
        self.epochs.pop(epoch - 1, None)
        return self.model.gradient(self.epochs[epoch][step])

    @endpoint
    def apply(self, mean: list[Array]) -> None:
        self.model.apply(mean)

    @endpoint
    def parameters(self) -> list[Array]:
        return self.model.layers


class Loader(Actor):
    """Feeds some of the workers: it got their mesh and calls them itself, nothing passes through the client."""

    def __init__(self, workers: Worker, train: Images) -> None:
        mine = range(current_rank().rank, WORKERS, LOADERS)
        self.workers = {index: workers.slice(workers=index) for index in mine}
        self.train = train

    @endpoint
    def feed(self, epoch: int) -> None:
        sent = [worker.receive.call_one(epoch, batches(self.train, index, epoch)) for index, worker in self.workers.items()]
        for one in sent:
            one.get()


class Evaluator(Actor):
    """Reads the held-out images with the parameters it is given."""

    def __init__(self, held_out: Images) -> None:
        self.images = held_out

    @endpoint
    def score(self, layers: list[Array]) -> tuple[float, int]:
        model = Model()
        model.layers = layers
        return model.score(self.images)


class Progress:
    """A bar on a terminal; for output to a file, a line every fifth of the way."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.terminal = sys.stdout.isatty()

    def show(self, done: int, text: str) -> None:
        if self.terminal:
            filled = 30 * done // self.total
            end = "\n" if done == self.total else ""
            print(f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{self.total}  {text}", end=end, flush=True)
        elif 5 * done // self.total > 5 * (done - 1) // self.total:
            print(f"{100 * done // self.total:3} %  step {done}/{self.total}  {text}", flush=True)


def train_on_mesh(train: Images, held_out: Images, epochs: int) -> tuple[list[list[Array]], list[float], list[tuple[float, int]]]:
    """The parameters of every worker at the end, the loss of each step, and the score after each epoch."""
    # No line here waits: the processes start together, and calls to actors that do not exist yet are kept in order.
    workers = this_host().spawn_procs(per_host={"workers": WORKERS}).spawn("workers", Worker)
    loaders = this_host().spawn_procs(per_host={"loaders": LOADERS}).spawn("loaders", Loader, workers, train)
    evaluator = this_host().spawn_procs().spawn("evaluator", Evaluator, held_out)

    progress = Progress(epochs * STEPS)
    losses: list[float] = []
    scores = []
    fed = loaders.feed.call(0)
    for epoch in range(epochs):
        fed.get()
        if epoch + 1 < epochs:
            fed = loaders.feed.call(epoch + 1)  # while this epoch trains
        for step in range(STEPS):
            mean, loss = average(workers.gradient.call(epoch, step).get().values())
            workers.apply.broadcast(mean)
            losses.append(loss)
            progress.show(len(losses), f"loss {loss:.3f}")
        layers = workers.slice(workers=0).parameters.call_one().get()
        scores.append(evaluator.score.call_one(layers))  # not waited for: training goes on
    parameters = list(workers.parameters.call().get().values())
    return parameters, losses, [score.get() for score in scores]


def train_alone(train: Images, epochs: int) -> Model:
    """The same steps in one process: each batch is the four parts of the workers, put together."""
    model = Model()
    for epoch in range(epochs):
        shards = [batches(train, worker, epoch) for worker in range(WORKERS)]
        for parts in zip(*shards, strict=True):
            whole = Images(np.concatenate([part.pixels for part in parts]), np.concatenate([part.digits for part in parts]))
            mean, _ = average([model.gradient(whole)])
            model.apply(mean)
    return model


def plot(path: str, losses: list[float], scores: list[tuple[float, int]]) -> None:
    # matplotlib logs a missing font cache or configuration folder, and works without it.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="cross entropy", yscale="log", title=f"Handwritten digits on {WORKERS} workers")
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8, label="training batches")
    axes.plot([STEPS * (epoch + 1) for epoch in range(len(scores))], [loss for loss, _ in scores], marker=".", label="held-out images")
    axes.legend()
    figure.savefig(path, dpi=120)


def serve_dashboard() -> None:
    """Serves the dashboard until this process ends, and prints its address. The token in it is for this user alone."""
    import monarch.telemetry as telemetry

    running = telemetry.start(include_dashboard=True)
    print(f"dashboard:             {running.dashboard_url}", flush=True)


def wait_for_enter() -> None:
    """Returns at once if the input is no terminal."""
    if sys.stdin.isatty():
        try:
            input("Press Enter to end the dashboard. ")
        except (EOFError, KeyboardInterrupt):
            print()


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits on a mesh of four processes.")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--out", default="digits_loss.png", help="where the loss curve goes (PNG, default: %(default)s)")
    parser.add_argument("--dashboard", action="store_true", help="show the processes in a browser")
    options = parser.parse_args()
    epochs = 15 if options.quick else 30

    # Processes inherit the environment. Each is one of several on this machine, so each uses one thread for its linear algebra.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"

    # Importing scikit-learn takes longer than all the rest: this process alone does it, the others receive arrays.
    train, held_out = load()
    if options.dashboard:
        serve_dashboard()
    start = time.monotonic()
    parameters, losses, scores = train_on_mesh(train, held_out, epochs)
    print(f"trained {epochs} epochs, {len(losses)} steps on {WORKERS} workers, {time.monotonic() - start:.1f} s with start-up")

    alone = train_alone(train, epochs)
    _, right_alone = alone.score(held_out)
    _, right = scores[-1]
    identical = all(np.array_equal(a, b) for layers in parameters for a, b in zip(layers, parameters[0], strict=True))
    difference = max(float(np.abs(a - b).max()) for a, b in zip(parameters[0], alone.layers, strict=True))
    plot(options.out, losses, scores)

    print(
        f"held-out accuracy:     {right / HELD_OUT:.2%} on the mesh, {right_alone / HELD_OUT:.2%} in a single process ({HELD_OUT} images)"
    )
    print(f"parameters:            {'identical' if identical else 'DIFFERENT'} on all workers")
    print(f"largest difference:    {difference:.1e} between a parameter of the mesh and of the single process")
    print(f"loss curve:            {options.out}")
    good = right / HELD_OUT >= 0.95 and right == right_alone and identical and difference <= 1e-10
    print("passed" if good else "FAILED")
    if options.dashboard:
        wait_for_enter()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
