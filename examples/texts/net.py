"""Who should read a customer's message? A small encoder of texts."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS = 512  # tokens that it knows
WIDTH = 64
HEADS = 4
LONGEST = 128
TEAMS = ("billing", "delivery", "support")
WEIGHTS = Path(__file__).with_name("router.pt")


class Router(nn.Module):
    """Tokens of one layer of attention, then the mean of those that are in the text."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LONGEST, WIDTH)
        self.attended = nn.Linear(WIDTH, 3 * WIDTH)
        self.teams = nn.Linear(WIDTH, len(TEAMS))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.words(input_ids) + self.places(places)
        query, key, value = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.attended(hidden).chunk(3, dim=2)
        )
        seen = attention_mask[:, None, None, :].bool()
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        hidden = hidden + mixed.transpose(1, 2).flatten(2)
        mask = attention_mask[:, :, None].to(hidden.dtype)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return functional.softmax(self.teams(mean), dim=1)


def make() -> nn.Module:
    router = Router()
    router.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return router
