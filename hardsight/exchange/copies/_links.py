"""Files of a copy: hard links if the file system has them, else copies."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Links:
    """Puts files into a copy, and counts how.

    Attributes:
        copies_only: copy every file, so that the two trees share nothing.
        linked: how many are hard links.
        copied: how many are copies.
        unreadable: how many could not be read, such as links that lead nowhere.
    """

    copies_only: bool = False
    linked: int = 0
    copied: int = 0
    unreadable: int = 0

    def place(self, file: bytes | Path, target: bytes | Path) -> None:
        """The file, or what a link leads to, under another name."""
        content, place = os.path.realpath(os.fsdecode(file)), os.fsdecode(target)
        if not os.path.isfile(content):
            self.unreadable += 1
            return
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not self.copies_only:
            try:
                os.link(content, place)
            except FileExistsError:
                raise
            except OSError:  # another disk, or a file system without links: all are copied
                self.copies_only = True
            else:
                self.linked += 1
                return
        shutil.copy2(content, place)
        self.copied += 1

    def notes(self) -> list[str]:
        """What was done, in words."""
        said = []
        if self.linked:
            said.append(
                f"{self.linked:,} files are hard links: they take no room, and one that is edited "
                "in place changes in both folders; --copy makes copies"
            )
        if self.copied:
            said.append(f"{self.copied:,} files are copies")
        if self.unreadable:
            said.append(f"{self.unreadable:,} files cannot be read and are left out")
        return said
