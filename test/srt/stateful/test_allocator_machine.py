"""Free lists against a dictionary: any order of alloc, free, handing over and wrong calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sglang.srt.mem_cache.allocator import (
    OwnerTable,
    SlotAllocator,
    SlotError,
    TokenToKVPoolAllocator,
)

NUM_OWNERS = 4
OWNER = st.integers(0, NUM_OWNERS - 1)
PICK = st.integers(0, 1 << 16)


def slots_of(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


class SlotMachine(RuleBasedStateMachine):
    """`held` maps each slot that somebody holds to its owner; everything else must be free."""

    @initialize(size=st.integers(1, 12), first=st.integers(0, 2))
    def start(self, size: int, first: int) -> None:
        self.owners = OwnerTable()
        self.ids = [self.owners.register(f"request r{i}") for i in range(NUM_OWNERS)]
        self.slots = SlotAllocator("Mamba slot", size, self.owners, first=first)
        self.held: dict[int, int] = {}

    @rule(who=OWNER, count=st.integers(0, 14))
    def alloc(self, who: int, count: int) -> None:
        got = self.slots.alloc(count, self.ids[who])
        if count > self.slots.size - len(self.held):
            assert got is None
            return
        assert got is not None and len(set(got.tolist())) == count
        assert not set(got.tolist()) & set(self.held)
        self.held.update(dict.fromkeys(got.tolist(), self.ids[who]))

    def _of(self, who: int, pick: int) -> list[int]:
        mine = sorted(s for s, owner in self.held.items() if owner == self.ids[who])
        return [s for i, s in enumerate(mine) if pick >> i & 1]

    @rule(who=OWNER, pick=PICK)
    def free(self, who: int, pick: int) -> None:
        chosen = self._of(who, pick)
        self.slots.free(slots_of(*chosen), self.ids[who])
        for slot in chosen:
            del self.held[slot]

    @rule(who=OWNER, to=OWNER, pick=PICK)
    def reown(self, who: int, to: int, pick: int) -> None:
        chosen = self._of(who, pick)
        self.slots.reown(slots_of(*chosen), self.ids[who], self.ids[to])
        self.held.update(dict.fromkeys(chosen, self.ids[to]))

    @rule(who=OWNER, pick=PICK, hand_over=st.booleans())
    def wrong_holder(self, who: int, pick: int, hand_over: bool) -> None:
        """A free or hand-over by somebody else raises, names both, and changes nothing."""
        wrong = [s for s in range(self.slots.first, self.slots.first + self.slots.size)
                 if self.held.get(s) != self.ids[who]]  # fmt: skip
        if not wrong:
            return
        slot = wrong[pick % len(wrong)]
        good = self._of(who, pick)
        with pytest.raises(SlotError) as error:
            if hand_over:
                self.slots.reown(slots_of(*good, slot), self.ids[who], self.ids[0])
            else:
                self.slots.free(slots_of(*good, slot), self.ids[who])
        text = str(error.value)
        holder = self.owners.label(self.held.get(slot, 0))
        assert f"Mamba slot {slot} " in text and self.owners.label(self.ids[who]) in text
        assert f"held by {holder}" in text

    @rule(who=OWNER, pick=PICK)
    def twice_in_one_call(self, who: int, pick: int) -> None:
        chosen = self._of(who, pick)
        if not chosen:
            return
        with pytest.raises(SlotError, match="twice"):
            self.slots.free(slots_of(*chosen, chosen[0]), self.ids[who])

    @rule(slot=st.sampled_from([-1, 99]), who=OWNER)
    def no_such_slot(self, slot: int, who: int) -> None:
        with pytest.raises(SlotError, match="does not exist"):
            self.slots.free(slots_of(slot), self.ids[who])

    @rule(slot=PICK)
    def free_by_nobody(self, slot: int) -> None:
        """Even the free list itself cannot give a free slot back."""
        free = self.slots.free_slots()
        if len(free):
            with pytest.raises(SlotError):
                self.slots.free(free[slot % len(free)][None], 0)

    @invariant()
    def pools_agree(self) -> None:
        if not hasattr(self, "slots"):
            return
        assert self.slots.available_size() == self.slots.size - len(self.held)
        assert self.slots.held_slots().tolist() == sorted(self.held)
        assert sorted(self.slots.free_slots().tolist()) == [
            s for s in range(self.slots.first, self.slots.first + self.slots.size)
            if s not in self.held
        ]  # fmt: skip
        for slot, owner in self.held.items():
            assert self.slots.owner_of(slot) == owner


class PageMachine(RuleBasedStateMachine):
    """Sequences that grow by chunks and by single tokens, and go, over pages of any size.

    `seqs` maps owner index to the slots of its sequence, in order.
    """

    @initialize(page=st.sampled_from([1, 4, 16, 64]), pages=st.integers(2, 9), rest=PICK)
    def start(self, page: int, pages: int, rest: int) -> None:
        self.owners = OwnerTable()
        self.ids = [self.owners.register(f"request r{i}") for i in range(NUM_OWNERS)]
        self.page, self.num_pages = page, pages
        self.kv = TokenToKVPoolAllocator(pages * page + rest % page, page, self.owners)
        self.seqs: dict[int, list[int]] = {}

    def _pages(self, length: int) -> int:
        return -(-length // self.page)

    def _free_pages(self) -> int:
        return self.num_pages - sum(self._pages(len(s)) for s in self.seqs.values())

    @rule(who=OWNER, count=st.integers(1, 150))
    def extend(self, who: int, count: int) -> None:
        seq = self.seqs.get(who, [])
        need = self._pages(len(seq) + count) - self._pages(len(seq))
        assert self.kv.pages_needed(len(seq), count) == need
        last = seq[-1] if seq else 0
        got = self.kv.alloc_extend(len(seq), last, count, self.ids[who])
        if need > self._free_pages():
            assert got is None
            return
        assert got is not None and len(got) == count
        self.seqs[who] = seq + got.tolist()

    @rule()
    def decode(self) -> None:
        who = sorted(self.seqs)
        if not who:
            return
        lens = slots_of(*(len(self.seqs[w]) for w in who))
        last = slots_of(*(self.seqs[w][-1] for w in who))
        ids = np.asarray([self.ids[w] for w in who], dtype=np.int64)
        got = self.kv.alloc_decode(lens, last, ids)
        if sum(int(n) % self.page == 0 for n in lens) > self._free_pages():
            assert got is None
            return
        assert got is not None
        for w, slot in zip(who, got.tolist(), strict=True):
            self.seqs[w].append(slot)

    @rule(who=OWNER, keep=st.integers(0, 4))
    def free_tail(self, who: int, keep: int) -> None:
        """Give back all but the first pages, as a request whose head the cache took."""
        seq = self.seqs.pop(who, [])
        head = seq[: keep * self.page]
        self.kv.free(slots_of(*seq[len(head) :]), self.ids[who])
        if head:
            self.seqs[who] = head

    @rule(who=OWNER, to=OWNER)
    def hand_over(self, who: int, to: int) -> None:
        if to in self.seqs or who not in self.seqs:
            return
        self.kv.reown(slots_of(*self.seqs[who]), self.ids[who], self.ids[to])
        self.seqs[to] = self.seqs.pop(who)

    @rule(who=OWNER, other=OWNER)
    def foreign_free(self, who: int, other: int) -> None:
        if who not in self.seqs or who == other:
            return
        with pytest.raises(SlotError, match=f"request r{other}"):
            self.kv.free(slots_of(*self.seqs[who]), self.ids[other])

    @rule(who=OWNER)
    def double_free(self, who: int) -> None:
        seq = slots_of(*self.seqs.pop(who, []))
        self.kv.free(seq, self.ids[who])
        if len(seq):
            with pytest.raises(SlotError, match=f"last freed by request r{who}"):
                self.kv.free(seq, self.ids[who])

    @invariant()
    def slots_are_disjoint_and_in_order(self) -> None:
        if not hasattr(self, "kv"):
            return
        assert self.kv.available_size() == self._free_pages() * self.page
        used = [slot for seq in self.seqs.values() for slot in seq]
        assert len(set(used)) == len(used)
        assert all(self.page <= slot < (self.num_pages + 1) * self.page for slot in used)
        for seq in self.seqs.values():
            assert all(slot % self.page == i % self.page for i, slot in enumerate(seq))


TestSlotAllocator = SlotMachine.TestCase
TestPagedAllocator = PageMachine.TestCase
