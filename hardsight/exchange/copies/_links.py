"""Put files into a copy: as hard links if the file system has them, otherwise as copies."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Links:
    """Puts files into a copy, and counts how.

    Attributes:
        copies_only: whether to copy every file, so that the two folders share nothing.
        linked: number of hard links.
        copied: number of copies.
        unreadable: number of files that could not be read, such as broken links.
    """

    copies_only: bool = False
    linked: int = 0
    copied: int = 0
    unreadable: int = 0

    def place(self, file: bytes | Path, target: bytes | Path) -> None:
        """Put a file, or the target of a symbolic link, under another name."""
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
            except OSError:  # another disk, or a file system without hard links: copy all files
                self.copies_only = True
            else:
                self.linked += 1
                return
        shutil.copy2(content, place)
        self.copied += 1

    def notes(self) -> list[str]:
        """Notes for the user about links, copies and unreadable files."""
        notes = []
        if self.linked:
            notes.append(
                f"{self.linked:,} files are hard links: they take no space, but a file that is "
                "edited in place changes in both folders; use --copy for copies"
            )
        if self.copied:
            notes.append(f"{self.copied:,} files are copies")
        if self.unreadable:
            notes.append(f"{self.unreadable:,} files cannot be read and are left out")
        return notes
