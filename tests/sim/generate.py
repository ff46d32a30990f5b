"""A small random world, as the lines of a script: one to five nodes, two to four models that mostly fit them.

`Catalog` keeps the keys of every model, so that an edit is a line too; `manners` say how engines behave.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.sim.world import Manners

NAMES = ("alpha", "beta", "gamma", "delta")
#: Longer, and shorter, than control's patience with gateways after its start, so that both show.
IDLE_S = (35, 90)
#: Of waiting clients some see it come (`gateways.PATIENCE_S`).
YIELD_S = (10, 40, 120)
DEFAULTS = {"min": "1", "gpus": "1", "memory": "10", "aliases": "", "profile": "main"}
Keys = dict[str, str]


class Fleet:
    """The nodes: their names, and GPUs each."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.gpus: dict[str, int] = {}
        for i in range(rng.choice((1, 2, 2, 2, 3, 3, 3, 4, 5))):
            self.gpus[f"box{i + 1}"] = rng.choice((1, 1, 2, 2, 0) if i else (1, 2))

    def lines(self) -> Iterator[str]:
        for name, count in self.gpus.items():
            gpus = f" gpus={','.join(['24'] * count)}" if count else ""
            yield f"node {name}{gpus}{self.rng.choice(('', '', '', ' cores=2', ' power=500'))}"


class Catalog:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.edits = 0
        self.models = {name: self._model() for name in NAMES[: rng.choice((2, 3, 3, 4))]}

    def _model(self) -> Keys:
        rng = self.rng
        low = rng.choice((0, 0, 0, 1, 1, 2))
        high = max(low, 1) if rng.random() < 0.8 else low + 1
        kind = rng.random()
        gpus = 0 if kind < 0.25 else 2 if kind > 0.95 else 1
        memory = str(rng.choice((6, 8, 10))) if gpus and rng.random() < 0.8 else "whole"
        scale = {"min": str(low), "max": str(high), "idle": str(rng.choice(IDLE_S)), "min_up": "10"}
        scale["yield"] = str(rng.choice(YIELD_S))
        if rng.random() < 0.25:
            scale |= {"lost_after": str(rng.choice((20, 60))), "max_unavailable": "2"}
        takes = {"host": "4", "cores": "1", "power": str(rng.choice((0, 150, 250)))}
        nodes = {"nodes": "2"} if rng.random() < 0.12 else {}
        if nodes and rng.random() < 0.7:
            nodes["order"] = "workers"
        if not nodes and scale["idle"] == str(IDLE_S[0]):
            scale["sleep"] = "1"
        return scale | {"gpus": str(gpus), "memory": memory} | takes | nodes

    def lines(self) -> Iterator[str]:
        grace, limit = self.rng.choice((5, 15)), self.rng.choice((1, 1, 2))
        yield f"catalog stray_grace={grace} assembly_window=40 start_limit={limit}"
        for name in self.models:
            yield self._line(name)

    def _line(self, name: str) -> str:
        said = self.models[name].items()
        keys = " ".join(f"{k}={v}" for k, v in said if v != DEFAULTS.get(k))
        return f"model {name} {keys}"

    # ------------------------------------------------------------ what an older control plane left running

    def left(self, gpus: dict[str, int]) -> Iterator[str]:
        """Halves of a pair, a removed model, one model twice, a renamed profile, an alias that moved."""
        free = [(node, i) for node, count in gpus.items() for i in range(count)]
        self.rng.shuffle(free)
        chance = self.rng.random
        if len({node for node, _ in free}) > 1 and chance() < 0.3:
            first = free.pop()
            second = next(g for g in free if g[0] != first[0])
            free.remove(second)
            self.models["deep"] = {"nodes": "2", "memory": "20", "idle": "80"}
            yield self._line("deep")
            for rank, gpu in enumerate((first, second)):
                yield _engine(gpu, f"deep-old/{rank}", 18013, "memory=20 world=2")
        if free and chance() < 0.3:
            yield _engine(free.pop(), "gone-old/0", 18014, "memory=6")
        ones = [n for n, m in self.models.items() if m.get("gpus") == "1" and "nodes" not in m]
        whole = ones if free else []
        if whole and len(free) > 1 and chance() < 0.3:
            for k in range(2):
                yield _engine(free.pop(), f"{whole[0]}-old{k}/0", 18010 + k, self._takes(whole[0]))
        if whole and free and chance() < 0.2:
            odd = self.rng.choice(("profile=before", "weights=other.gguf model=was"))
            if "model" in odd:
                self.models[whole[-1]]["aliases"] = "was"
                yield self._line(whole[-1])
            like = f"print={whole[-1]}-1 {self._takes(whole[-1])}"
            yield _engine(free.pop(), f"{whole[-1]}-odd/0", 18016, f"{odd} {like}")

    def _takes(self, name: str) -> str:
        return " ".join(f"{k}={self.models[name][k]}" for k in ("memory", "host", "cores", "power"))

    # ------------------------------------------------------------ edits

    def edit(self) -> str:
        """One edit as people make them, and the signal to read it; now and then the wrong file altogether."""
        self.edits += 1
        kinds = ("args", "args", "rename", "remove", "add", "scale", "all", "fewer")
        lines = getattr(self, f"_{self.rng.choice(kinds)}")(self.rng.choice(sorted(self.models)))
        return " ; ".join([*lines, "reload"])

    def edit_all(self) -> str:
        self.edits += 1
        return " ; ".join([*self._all(""), "reload"])

    def _args(self, name: str) -> list[str]:
        self.models[name]["print"] = f"{name}-e{self.edits}"
        return [self._line(name)]

    def _all(self, _: str) -> list[str]:
        return [line for name in sorted(self.models) for line in self._args(name)]

    def _rename(self, name: str) -> list[str]:
        if "-" in name or name == "deep":
            return self._args(name)
        keys = self.models.pop(name)
        aliases = ",".join(filter(None, (keys.get("aliases"), name)))
        same = {"print": keys.get("print", f"{name}-1"), "weights": f"{name}.gguf"}
        new = f"{name}-{self.edits}"
        self.models[new] = keys | same | {"aliases": aliases}
        return [f"unmodel {name}", self._line(new)]

    def _remove(self, name: str) -> list[str]:
        if len(self.models) == 1:
            return self._args(name)
        del self.models[name]
        return [f"unmodel {name}"]

    def _fewer(self, name: str) -> list[str]:
        """Somebody's half of the file."""
        gone = [other for other in sorted(self.models) if other != name]
        for other in gone:
            del self.models[other]
        return [f"unmodel {' '.join(gone)}"] if gone else self._args(name)

    def _add(self, _: str) -> list[str]:
        new = f"{self.rng.choice(NAMES)}-{self.edits}x"
        self.models[new] = self._model()
        return [self._line(new)]

    def _scale(self, name: str) -> list[str]:
        low = self.rng.choice((0, 1, 2))
        self.models[name] |= {"min": str(low), "max": str(max(low, 1))}
        return [self._line(name)]


def _engine(gpu: tuple[str, int], shard: str, port: int, keys: str) -> str:
    node, index = gpu
    return f"engine {node} {shard} gpus={index} port={port} {keys}"


def manners(rng: Random, trouble: float) -> Manners:
    """`trouble`: the share of engines with some bad habit."""
    bad = rng.random() < trouble
    habit = rng.choice(("fails", "ignores", "slow", "stuck", "lingers")) if bad else ""
    return Manners(
        load_s=rng.uniform(0.5, 8.0),
        fails_s=rng.uniform(0.1, 3.0) if habit == "fails" else None,
        term_s=None if habit == "ignores" else rng.uniform(3.0, 12.0) if habit == "slow" else 0.3,
        kill_s=rng.uniform(5.0, 25.0) if habit == "stuck" else 0.0,
        release_s=rng.uniform(1.0, 6.0) if habit == "lingers" else 0.2,
        restless=habit == "slow",
    )
