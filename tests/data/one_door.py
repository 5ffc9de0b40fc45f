"""The base of readers of /proc that watch or change what is read."""

from __future__ import annotations

from pinscope.probes.proc import Answer, Proc


class OneDoor(Proc):
    """Every text goes through ``read``: who overrides that has overridden all."""

    def beginning(self, path: str, most: int) -> Answer[tuple[str, bool]]:
        return self.read(path).then(lambda text: (text[:most], len(text) <= most), "")
