"""Networks on sequences of tokens in plain PyTorch: BERT, a causal Transformer, an LSTM that translates."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody writes it)
from torch import Tensor, nn


class Attention(nn.Module):
    """Scaled dot-product attention of several heads over one sequence."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(project(x)) for project in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalized afterwards."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, causal)
        self.feed = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.after_attention, self.after_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.after_attention(x + self.dropout(self.attention(x)))
        return self.after_feed(x + self.dropout(self.feed(x)))


class Bert(nn.Module):
    """BERT-base with its pooler and a classifier of two classes (Devlin et al., 2018)."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 30522) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions, self.segments = nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        stack = (Layer(width, heads, 4 * width, 0.1, causal=False) for _ in range(layers))
        self.layers = nn.Sequential(*stack)
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places) + self.segments(torch.zeros_like(tokens))
        x = self.layers(self.dropout(self.norm(x)))
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


class Transformer(nn.Module):
    """A causal language model of six layers; its output layer shares the weights of its embedding."""

    def __init__(
        self, layers: int = 6, width: int = 512, heads: int = 8, vocabulary: int = 32000, length: int = 192
    ) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(0.1)
        stack = (Layer(width, heads, 4 * width, 0.1, causal=True) for _ in range(layers))
        self.layers = nn.Sequential(*stack)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.dropout(self.words(tokens) + self.positions(places)))
        return F.linear(x, self.words.weight)


class Seq2Seq(nn.Module):
    """Two-layer LSTMs that read and write, with dot-product attention between them (Luong et al., 2015)."""

    def __init__(self, vocabulary: int = 10000, width: int = 512, layers: int = 2) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.decoder = nn.LSTM(width, width, layers, batch_first=True, dropout=0.2)
        self.mix, self.out = nn.Linear(2 * width, width), nn.Linear(width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        read, state = self.encoder(self.source(source))
        written, _ = self.decoder(self.target(target), state)
        weights = torch.softmax(written @ read.transpose(1, 2), dim=-1)
        return self.out(torch.tanh(self.mix(torch.cat([written, weights @ read], dim=2))))
