"""Room that passes use again and again: fresh memory pages cost as much as the arithmetic."""

from math import prod

from torch import Tensor


class Workspace:
    """Buffers by name. What is taken is good until the same name is taken again."""

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}
        self._parts: dict[str, Workspace] = {}

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """A contiguous tensor of `shape` with anything in it, of the dtype and on the device of `like`."""
        size, room = prod(shape), self._rooms.get(name)
        if room is None or room.numel() < size:
            room = self._rooms[name] = like.new_empty(size)
        return room[:size].view(shape)

    def part(self, name: str) -> "Workspace":
        """A workspace of its own inside this one."""
        return self._parts.setdefault(name, Workspace())


class Fresh(Workspace):
    """No room is used twice: for results that are handed out, or that autograd keeps."""

    def take(self, name: str, like: Tensor, *shape: int) -> Tensor:
        return like.new_empty(shape)

    def part(self, name: str) -> Workspace:
        return self


FRESH = Fresh()
