"""This module is the only place that draws transcripts many tokens at a time, by checking drafts.

A draw is a function of the model and of the row's own noise. One forward over a guess of the next tokens
gives the exact distribution after each of them, so every row draws its own token at every place, as if they
had come one by one, up to the first that differs from the guess. Nothing is accepted or rejected at random:
the transcripts are those of ``plain.generate``.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from transformers import DynamicCache

from asrl.models.layouts import replica_inputs
from asrl.models.prompt import clean_text
from asrl.models.speech_llm import SpeechLLM
from asrl.rollout.drafts import LONGEST_DRAFT, Branch, Draft, Fork, next_length, propose
from asrl.rollout.settings import SamplingSettings, row_uniforms
from asrl.sampling import draw_each, drawn_logps
from asrl.tree import PROMPT, PrefixTree
from asrl.types import Completions, Prompts, SpeechBatch


class Draws(NamedTuple):
    """Tokens drawn at every place of a round, and their log-probs under temperature alone."""

    tokens: Int[Tensor, "q g"]
    logps: Float[Tensor, "q g"]


class NewNode(NamedTuple):
    """A node of this round: its utterance, and which draw of which place it is."""

    utterance: int
    place: int
    slot: int


@torch.no_grad()
def generate(
    model: SpeechLLM,
    batch: SpeechBatch,
    settings: SamplingSettings,
    *,
    is_any_rank_busy: Callable[[bool], bool] = bool,
) -> Completions:
    """Draw one transcript per row of ``batch``, the same as ``plain.generate``, in far fewer forwards.

    Args:
        model: Dropout is off while it draws; its mode is restored afterwards.
        batch: The transcripts of its utterances are the first drafts.
        settings: What to draw from.
        is_any_rank_busy: Told whether this rank has rows left; where parameters are sharded, it answers for
            all ranks, and a rank without rows keeps joining forwards.
    """
    was_training = model.training
    model.eval()
    try:
        return _Rollout(model, batch, settings).run(is_any_rank_busy)
    finally:
        model.train(was_training)


class _Rollout:
    """The trees under construction, and the cache of their growing ends: one row per branch.

    The cache only grows: every forward appends the same number of columns to all rows. Columns that are not
    on a row's path (padding, wrong drafts) are masked out by ``is_valid``, and positions are given
    explicitly.
    """

    def __init__(self, model: SpeechLLM, batch: SpeechBatch, settings: SamplingSettings) -> None:
        self.model = model
        self.batch = batch
        self.settings = settings
        self.device = batch.features.device
        self.uniforms = row_uniforms(batch, settings.max_new_tokens, seed=settings.seed)
        self.references = [
            model.prompt.encode_transcript(clean_text(utterance.transcript))[:-1]
            for utterance in batch.utterances
        ]
        self.trees = [PrefixTree() for _ in batch.utterances]
        self.logps: list[list[float]] = [[] for _ in batch.utterances]  # of each node
        self.finished: list[list[list[int]]] = [[] for _ in batch.utterances]
        self.last_node: dict[int, int] = {}  # of the rows that are done
        self.cache = DynamicCache()

    def run(self, is_any_rank_busy: Callable[[bool], bool]) -> Completions:
        """Round after round until every row is done."""
        everyone = torch.arange(len(self.batch.utterances), device=self.device)
        prompts = self.model.prompts(self.model.encode_batch(self.batch, everyone))
        branches = self.start()
        forks = self.walk(branches, self.read_prompts(prompts, branches))
        while is_any_rank_busy(bool(forks)):
            if not forks:
                self.model.join_forward(self.device)
                continue
            self.keep(forks)
            branches = [self.branch(fork, branches[fork.parent]) for fork in forks]
            forks = self.walk(branches, self.read(branches))
        return self.completions()

    # ---- forwards ------------------------------------------------------------------------------------------

    def read_prompts(self, prompts: Prompts, branches: list[Branch]) -> list[Float[Tensor, "_ d"]]:
        """Read prompts and first drafts; return the states that predict every draft token and the next."""
        tokens, mask = self.pad([list(branch.draft.tokens) for branch in branches])
        inputs = replica_inputs(prompts, self.model.embed(tokens), mask)
        hidden = self.model.decoder(inputs.embeddings, inputs.is_visible, inputs.position_ids, self.cache)
        self.is_valid = inputs.is_visible[:, :0]
        self.num_prompt = self.num_read = prompts.num_tokens
        self.num_columns = hidden.shape[1]
        return [
            states[start - 1 : start + len(branch.draft.tokens)]
            for states, start, branch in zip(hidden, prompts.num_tokens.tolist(), branches, strict=True)
        ]

    def read(self, branches: list[Branch]) -> list[Float[Tensor, "_ d"]]:
        """Read the last token and the draft of every branch; return states as ``read_prompts`` does."""
        pending = [self.trees[branch.utterance].tokens[branch.node] for branch in branches]
        tokens, mask = self.pad(
            [[token, *b.draft.tokens] for token, b in zip(pending, branches, strict=True)]
        )
        depths = [self.trees[branch.utterance].depths[branch.node] for branch in branches]
        first = self.num_prompt + torch.tensor(depths, device=self.device)
        hidden = self.model.decoder(
            self.model.embed(tokens),
            torch.cat([self.is_valid, mask], dim=1),
            first[:, None] + torch.arange(tokens.shape[1], device=self.device),
            self.cache,
        )
        self.num_read = torch.ones_like(self.num_prompt)
        self.num_columns = tokens.shape[1]
        return [states[: 1 + len(b.draft.tokens)] for states, b in zip(hidden, branches, strict=True)]

    def keep(self, forks: list[Fork]) -> None:
        """Give every fork a row of the cache, with the columns that lie on its path."""
        parents = torch.tensor([fork.parent for fork in forks], device=self.device)
        accepted = torch.tensor([fork.num_accepted for fork in forks], device=self.device)
        self.cache.batch_select_indices(parents)
        columns = torch.arange(self.num_columns, device=self.device)
        is_on_path = columns < (self.num_read[parents] + accepted)[:, None]
        self.is_valid = torch.cat([self.is_valid[parents], is_on_path], dim=1)
        self.num_prompt = self.num_prompt[parents]

    def pad(self, rows: list[list[int]]) -> tuple[Int[Tensor, "b c"], Bool[Tensor, "b c"]]:
        """Tokens padded on the right, and where they are."""
        width = max(map(len, rows))
        tokens = [[*row, *([self.model.prompt.pad_id] * (width - len(row)))] for row in rows]
        num_tokens = torch.tensor([len(row) for row in rows], device=self.device)
        mask = torch.arange(width, device=self.device) < num_tokens[:, None]
        return torch.tensor(tokens, dtype=torch.long, device=self.device).reshape(len(rows), width), mask

    # ---- draws ---------------------------------------------------------------------------------------------

    def start(self) -> list[Branch]:
        """One branch per utterance, with its transcript as draft."""
        rows_of: list[list[int]] = [[] for _ in self.batch.utterances]
        for row, utterance in enumerate(self.batch.row_utterance.tolist()):
            rows_of[utterance].append(row)
        longest = min(LONGEST_DRAFT, self.settings.max_new_tokens - 1)
        drafts = [Draft(tuple(reference[:longest]), -1) for reference in self.references]
        return [
            Branch(utterance, PROMPT, tuple(rows), draft, longest)
            for utterance, (rows, draft) in enumerate(zip(rows_of, drafts, strict=True))
        ]

    def walk(self, branches: list[Branch], hidden: list[Float[Tensor, "_ d"]]) -> list[Fork]:
        """Draw along every draft; grow the trees and return where rows have left the drafts unfinished."""
        draws = self.draw(torch.cat(hidden), self.place_uniforms(branches))
        drawn = draws.tokens.tolist()
        new_nodes: list[NewNode] = []
        forks: list[Fork] = []
        first_place = 0
        for index, branch in enumerate(branches):
            num_places = 1 + len(branch.draft.tokens)
            places = drawn[first_place : first_place + num_places]
            forks += self.walk_branch(index, branch, places, first_place, new_nodes)
            first_place += num_places
        self.note_logps(draws.logps, new_nodes)
        return forks

    def draw(self, states: Float[Tensor, "q d"], uniforms: Float64[Tensor, "q g"]) -> Draws:
        """Draw a token with every uniform number of every place."""

        def draw_part(logits: Tensor, part: slice) -> Draws:
            tokens = draw_each(
                logits,
                uniforms[part],
                temperature=self.settings.temperature,
                top_k=self.settings.top_k,
                top_p=self.settings.top_p,
            )
            return Draws(tokens, drawn_logps(logits, tokens, self.settings.temperature))

        parts = self.model.each_logits(states, draw_part)
        return Draws(torch.cat([part.tokens for part in parts]), torch.cat([part.logps for part in parts]))

    def place_uniforms(self, branches: list[Branch]) -> Float64[Tensor, "q g"]:
        """Every row's own number at every place of its branch; 0 where a branch has fewer rows."""
        num_places = sum(1 + len(branch.draft.tokens) for branch in branches)
        uniforms = torch.zeros(num_places, max(len(b.rows) for b in branches), dtype=torch.float64)
        first_place = 0
        for branch in branches:
            num_places = 1 + len(branch.draft.tokens)
            depth = self.num_written(branch)
            own = self.uniforms[list(branch.rows), depth : depth + num_places]
            uniforms[first_place : first_place + num_places, : len(branch.rows)] = own.T
            first_place += num_places
        return uniforms.to(self.device)

    def num_written(self, branch: Branch) -> int:
        """Tokens that the rows of a branch have written."""
        return 0 if branch.node == PROMPT else self.trees[branch.utterance].depths[branch.node] + 1

    def walk_branch(
        self,
        index: int,
        branch: Branch,
        drawn: list[list[int]],
        first_place: int,
        new_nodes: list[NewNode],
    ) -> list[Fork]:
        """Follow the rows of one branch down its draft."""
        tree, draft = self.trees[branch.utterance], branch.draft.tokens
        node, on_draft, forks = branch.node, list(range(len(branch.rows))), []
        for num_accepted, tokens in enumerate(drawn):
            slots_of: dict[int, list[int]] = {}
            for slot in on_draft:
                slots_of.setdefault(tokens[slot], []).append(slot)
            on_draft, parent = [], node
            for token, slots in slots_of.items():
                child = tree.add(parent, token)
                new_nodes.append(NewNode(branch.utterance, first_place + num_accepted, slots[0]))
                if self.is_done(tree, child):
                    self.finish(branch, [branch.rows[slot] for slot in slots], child)
                elif num_accepted < len(draft) and token == draft[num_accepted]:
                    on_draft, node = slots, child
                else:
                    rows = tuple(branch.rows[slot] for slot in slots)
                    forks.append(Fork(index, num_accepted, child, rows))
            if not on_draft:
                break
        return forks

    def is_done(self, tree: PrefixTree, node: int) -> bool:
        """Whether a row that has come to a node writes no more."""
        is_cut = tree.depths[node] + 1 == self.settings.max_new_tokens
        return is_cut or tree.tokens[node] == self.model.prompt.end_id

    def finish(self, branch: Branch, rows: list[int], node: int) -> None:
        """Close rows; what they wrote may guide their siblings."""
        tree = self.trees[branch.utterance]
        self.finished[branch.utterance].append([tree.tokens[step] for step in tree.path(node)])
        self.last_node |= dict.fromkeys(rows, node)

    def note_logps(self, logps: Float[Tensor, "q g"], new_nodes: list[NewNode]) -> None:
        """Keep the log-prob of every new node, under temperature alone."""
        table = logps.tolist()
        for node in new_nodes:
            self.logps[node.utterance].append(table[node.place][node.slot])

    def branch(self, fork: Fork, parent: Branch) -> Branch:
        """Guess how the rows of a fork go on."""
        utterance, tree = parent.utterance, self.trees[parent.utterance]
        written = [tree.tokens[node] for node in tree.path(fork.node)]
        length = next_length(parent.draft_length, fork.num_accepted, len(parent.draft.tokens))
        draft = propose(
            written,
            self.references[utterance],
            parent.draft.reference_place + fork.num_accepted + 1,
            self.finished[utterance],
            min(length, self.settings.max_new_tokens - len(written) - 1),
        )
        return Branch(utterance, fork.node, fork.rows, draft, length)

    def completions(self) -> Completions:
        """The transcripts, row by row."""
        utterances = self.batch.row_utterance.tolist()
        paths = [self.trees[utterance].path(self.last_node[row]) for row, utterance in enumerate(utterances)]
        tokens, mask = self.pad(
            [[self.trees[u].tokens[node] for node in path] for u, path in zip(utterances, paths, strict=True)]
        )
        logps = torch.zeros(mask.shape, device=self.device)
        logps[mask] = torch.tensor(
            [self.logps[u][node] for u, path in zip(utterances, paths, strict=True) for node in path],
            device=self.device,
        )
        is_finished = (tokens == self.model.prompt.end_id) & mask
        return Completions(tokens, mask, is_finished.any(1), logps)
