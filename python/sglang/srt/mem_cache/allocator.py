"""Host-side free lists. Every slot knows who holds it, so a wrong free cannot pass unseen."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]

FREE = 0  # owner id of a slot in a free list
MAX_PAST_LABELS = 65536


class SlotError(RuntimeError):
    """A slot was freed twice, freed by somebody who does not hold it, or handed over wrongly."""


class OwnerTable:
    """Names for owner ids: "request <rid>", "tree node <n>", "profiler". Ids are never reused."""

    def __init__(self) -> None:
        self._next_id = 1
        self._labels: OrderedDict[int, str] = OrderedDict()

    def register(self, label: str) -> int:
        """A new owner id. The oldest labels are forgotten after `MAX_PAST_LABELS` newer ones."""
        owner = self._next_id
        self._next_id += 1
        self._labels[owner] = label
        if len(self._labels) > MAX_PAST_LABELS:
            self._labels.popitem(last=False)
        return owner

    def label(self, owner: int) -> str:
        """The name of an owner, for messages."""
        if owner == FREE:
            return "nobody"
        return self._labels.get(owner, f"owner {owner}")


class SlotAllocator:
    """Free list over the slots `first .. first + size - 1` of one pool.

    A slot is free, or held by exactly one owner. `alloc` is all or nothing; `free` and `reown`
    check every slot before they change anything.
    """

    def __init__(self, name: str, size: int, owners: OwnerTable, first: int = 1) -> None:
        self.name = name
        self.size = size
        self.first = first
        self.owners = owners
        # A stack: the slots freed last are used first, while they are warm in the CPU caches.
        self._stack = np.arange(first + size - 1, first - 1, -1, dtype=np.int32)
        self._top = size
        self._owner = np.zeros(first + size, dtype=np.int64)
        self._last_owner = np.zeros(first + size, dtype=np.int64)

    def available_size(self) -> int:
        """Number of free slots."""
        return self._top

    def alloc(self, count: int, owner: int) -> IntArray | None:
        """`count` slots for `owner`, or None (and nothing changed) when fewer are free."""
        if count > self._top:
            return None
        slots = self._stack[self._top - count : self._top].copy()
        self._top -= count
        self._owner[slots] = owner
        return slots

    def free(self, slots: IntArray, owner: int) -> None:
        """Give back slots that `owner` holds. Raises SlotError naming slot and both owners."""
        if len(slots) == 0:
            return
        if owner == FREE:
            raise SlotError(f"{self.name}: nobody frees {slots[:8]}; a free needs its holder")
        self._check_held(slots, owner, "freed")
        if len(slots) > 1 and len(np.unique(slots)) != len(slots):
            raise SlotError(
                f"{self.name}: {self.owners.label(owner)} frees a slot twice in {slots}"
            )
        self._owner[slots] = FREE
        self._last_owner[slots] = owner
        self._stack[self._top : self._top + len(slots)] = slots
        self._top += len(slots)

    def reown(self, slots: IntArray, old: int, new: int | npt.NDArray[np.int64]) -> None:
        """Hand slots from owner `old` to `new` (one owner, or one a slot).

        Raises SlotError, and changes nothing, if `old` does not hold one of them.
        """
        if len(slots) == 0:
            return
        self._check_held(slots, old, "handed over")
        self._owner[slots] = new

    def owner_of(self, slot: int) -> int:
        """Owner id of a slot, `FREE` when it is in the free list."""
        return int(self._owner[slot])

    def not_held_by(self, slots: IntArray, owner: int) -> IntArray:
        """Those of `slots` that somebody else holds, or nobody."""
        others: IntArray = slots[self._owner[slots] != owner]
        return others

    def held_slots(self) -> IntArray:
        """All slots that somebody holds, ascending."""
        return np.flatnonzero(self._owner).astype(np.int32)

    def free_slots(self) -> IntArray:
        """All slots of the free list, in no particular order."""
        return self._stack[: self._top].copy()

    def describe(self, slot: int) -> str:
        """One slot for an error message: number, holder, last holder."""
        holder = self.owners.label(int(self._owner[slot]))
        last = self.owners.label(int(self._last_owner[slot]))
        return f"{self.name} {slot} (held by {holder}, last freed by {last})"

    def reclaim(self, slots: IntArray) -> None:
        """Repair only: put slots back whoever holds them. Slots already free are left alone."""
        for slot in slots:
            owner = self.owner_of(int(slot))
            if owner != FREE:
                self.free(np.asarray([slot], dtype=np.int32), owner)

    def _check_held(self, slots: IntArray, owner: int, verb: str) -> None:
        low, high = int(slots.min()), int(slots.max())
        if low < self.first or high >= self.first + self.size:
            bad = low if low < self.first else high
            raise SlotError(
                f"{self.name} {bad} {verb} by {self.owners.label(owner)} does not exist: "
                f"slots are {self.first} to {self.first + self.size - 1}"
            )
        wrong = self.not_held_by(slots, owner)
        if len(wrong):
            raise SlotError(
                f"{self.describe(int(wrong[0]))} was {verb} by {self.owners.label(owner)}, "
                "who does not hold it"
            )


class TokenToKVPoolAllocator:
    """KV slots of tokens, handed out in pages of `page_size` consecutive slots.

    Slot ids are `page * page_size + offset`; page 0 is padding and never handed out. Sizes are in
    tokens. A page belongs to one owner as a whole: a request's last page may be partly used.
    """

    def __init__(self, size: int, page_size: int, owners: OwnerTable) -> None:
        self.page_size = page_size
        self.size = size // page_size * page_size
        self.pages = SlotAllocator("KV page", size // page_size, owners)

    def available_size(self) -> int:
        """Free tokens."""
        return self.pages.available_size() * self.page_size

    def alloc_extend(self, seq_len: int, last_slot: int, count: int, owner: int) -> IntArray | None:
        """Slots for `count` tokens that follow a sequence of `seq_len` tokens.

        The rest of the page that holds `last_slot` is used first. None, and nothing changed, when
        too few pages are free.
        """
        page = self.page_size
        in_last = min(count, -seq_len % page)
        new_pages = self.pages.alloc(-(-(count - in_last) // page), owner)
        if new_pages is None:
            return None
        head = np.arange(last_slot + 1, last_slot + 1 + in_last, dtype=np.int32)
        if page == 1:
            return new_pages
        tail = (new_pages[:, None] * page + np.arange(page, dtype=np.int32)).reshape(-1)
        return np.concatenate([head, tail[: count - in_last].astype(np.int32)])

    def alloc_decode(
        self, seq_lens: IntArray, last_slots: IntArray, owners: npt.NDArray[np.int64]
    ) -> IntArray | None:
        """One slot for the next token of each sequence; None, and nothing changed, on shortage.

        seq_lens, last_slots, owners: [rows]; sequences are not empty.
        """
        page = self.page_size
        opens_page = seq_lens % page == 0
        pages = self.pages.alloc(int(opens_page.sum()), 0)
        if pages is None:
            return None
        self.pages.reown(pages, 0, owners[opens_page])
        slots = last_slots + 1
        slots[opens_page] = pages * page
        return slots.astype(np.int32)

    def pages_needed(self, seq_len: int, count: int) -> int:
        """New pages that `count` more tokens after `seq_len` take."""
        page = self.page_size
        return -(-(seq_len + count) // page) - -(-seq_len // page)

    def free(self, slots: IntArray, owner: int) -> None:
        """Give back the pages that contain `slots`; these must be whole pages of `owner`."""
        self.pages.free(self.pages_of(slots), owner)

    def reown(self, slots: IntArray, old: int, new: int) -> None:
        """Hand the pages that contain `slots` over to another owner."""
        self.pages.reown(self.pages_of(slots), old, new)

    def pages_of(self, slots: IntArray) -> IntArray:
        """Pages of slots that lie in sequence order (so that the first slot opens a page)."""
        if self.page_size == 1:
            return slots
        return slots[:: self.page_size] // np.int32(self.page_size)
